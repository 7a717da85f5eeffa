"""Folders that users copy from: at the top of the source tree, inside the package once installed."""

from pathlib import Path

import winhost


def shipped(name: str) -> Path:
    """The folder `name` (`examples`, `playbooks`). Raises FileNotFoundError where this winhost has none."""
    package = Path(winhost.__file__).parent
    for folder in (package / "shipped" / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"this winhost was installed without its folder {name!r}")
