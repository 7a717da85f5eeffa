"""Distro images that are pinned by name, with their source and hash."""

from collections.abc import Mapping
from importlib.resources import files

from winhost.model.catalogue_file import load_catalogue
from winhost.model.errors import did_you_mean, visible
from winhost.model.once import once


@once
def images() -> Mapping[str, Mapping[str, str]]:
    """Source and SHA-256 of each, by name."""
    known: dict[str, dict[str, str]] = load_catalogue(files(__package__).joinpath("images.yaml"))
    return known


def named(image: object) -> object:
    """Source and hash of the named image; a mapping unchanged. Raises ValueError."""
    if not isinstance(image, str):
        return image
    if image not in images():
        near = did_you_mean(image, images()) or f"; there are: {', '.join(images())}."
        raise ValueError(
            f"no image is pinned as '{visible(image)}'{near} Any other one goes by image.source and image.sha256"
        )
    return images()[image]
