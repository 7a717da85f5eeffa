"""Finds the shipped folders: at the top of the source tree, or inside the installed package."""

from collections.abc import Mapping
from pathlib import Path

import winhost
from winhost.model.once import once


def shipped(name: str) -> Path:
    """Return the folder `name` (`examples`, `playbooks`). Raises FileNotFoundError if it is missing."""
    package = Path(winhost.__file__).parent
    for folder in (package / "shipped" / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"this winhost was installed without its folder {name!r}")


@once
def example_hosts() -> Mapping[str, Path]:
    """Return the host files of the lab by name, in alphabetical order."""
    return {path.stem: path for path in sorted((shipped("examples") / "hosts").glob("*.yaml"))}
