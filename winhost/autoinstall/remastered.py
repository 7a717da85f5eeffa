"""An installation image with our settings in it, made by xorriso: it keeps the boot records that the image has."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from winhost.autoinstall.medium_files import SUMS, read_from_image
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.files import write_whole

_LONGEST_S = 1800


def remastered(image: Path, added: Mapping[str, bytes], out: Path) -> None:
    """Secret where the settings are. Raises UsageError (NoXorriso), WinhostError (NotRemastered) and OSError."""
    program = shutil.which("xorriso")
    if program is None:
        hint = "Debian and Ubuntu: apt-get install xorriso. Or stage the media on the disk, which needs none"
        raise UsageError("NoXorriso", what="there is no xorriso on this computer, which makes the image", hint=hint)
    whole = {**added, SUMS: _sums(read_from_image(image, SUMS), added)}
    with tempfile.TemporaryDirectory() as folder:
        # As files, also below /dev, where it would take them for drives.
        words = [program, "-abort_on", "FAILURE", "-indev", f"stdio:{image}", "-outdev", f"stdio:{out}"]
        words += ["-boot_image", "any", "replay", "-overwrite", "on"]
        for number, (path, data) in enumerate(whole.items()):
            file = Path(folder) / str(number)
            write_whole(file, [data], mode=0o600)
            words += ["-map", str(file), f"/{path}"]
        os.close(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        _run(words, out)


def _run(words: list[str], out: Path) -> None:
    ran = subprocess.run(words, capture_output=True, timeout=_LONGEST_S)  # noqa: S603 - paths, and words of ours
    if ran.returncode:
        out.unlink(missing_ok=True)
        last = [
            line for line in ran.stderr.decode("utf-8", "replace").splitlines() if "FAILURE" in line or "FATAL" in line
        ]
        what = f"xorriso ended with {ran.returncode}: {visible(last[-1] if last else 'without a word')[:300]}"
        raise WinhostError("NotRemastered", what=what, hint="Is there room for the image, and is the other one whole?")


def _sums(text: bytes, added: Mapping[str, bytes]) -> bytes:
    """With those of the files that become others, which the installer's own check of the medium reads."""
    ours = {f"./{path}": hashlib.md5(data, usedforsecurity=False).hexdigest() for path, data in added.items()}
    lines = [line for line in text.decode("utf-8", "replace").splitlines() if line.partition("  ")[2] not in ours]
    return ("\n".join([*lines, *(f"{sum_}  {path}" for path, sum_ in sorted(ours.items()))]) + "\n").encode()
