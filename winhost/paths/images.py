"""Images of distros that have a name, so that nobody has to look up a hash."""

from collections.abc import Mapping
from importlib.resources import files

import yaml

from winhost.model.errors import did_you_mean, visible
from winhost.model.once import once


@once
def images() -> Mapping[str, Mapping[str, str]]:
    """Source and SHA-256 of each, by name."""
    text = files(__package__).joinpath("images.yaml").read_text("utf-8")
    known: dict[str, dict[str, str]] = yaml.safe_load(text)
    return known


def named(image: object) -> object:
    """What a name stands for; a mapping as it is. Raises ValueError."""
    if not isinstance(image, str):
        return image
    if image not in images():
        near = did_you_mean(image, images()) or f"; there are: {', '.join(images())}."
        raise ValueError(
            f"no image is pinned as '{visible(image)}'{near} Any other one goes by image.source and image.sha256"
        )
    return images()[image]
