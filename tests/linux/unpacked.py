"""The folder of a bundle that is copied into a Linux."""

import shutil
from pathlib import Path

from winhost.bundle.bundle_files import bundle
from winhost.model.plan import Plan


def unpack_linux(plan: Plan, folder: Path) -> Path:
    """Unpack the folder. An existing one is removed first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o755)
    for name, content in bundle(plan).items():
        if name.startswith("linux/"):
            file = folder / name.removeprefix("linux/")
            file.parent.mkdir(mode=0o755, exist_ok=True)
            file.write_bytes(content)
    return folder
