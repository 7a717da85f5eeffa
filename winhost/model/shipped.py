"""Folders that users copy from: at the top of the source tree, inside the package once installed."""

from collections.abc import Mapping
from pathlib import Path

import winhost
from winhost.model.once import once


def shipped(name: str) -> Path:
    """The folder `name` (`examples`, `playbooks`). Raises FileNotFoundError where this winhost has none."""
    package = Path(winhost.__file__).parent
    for folder in (package / "shipped" / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"this winhost was installed without its folder {name!r}")


@once
def example_hosts() -> Mapping[str, Path]:
    """The host files that the lab serves by their names, in alphabetical order."""
    return {path.stem: path for path in sorted((shipped("examples") / "hosts").glob("*.yaml"))}
