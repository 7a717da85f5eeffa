"""Packed models. The package that packs and loads them runs in an engine's Python, and gets there as a wheel."""

import json
import os
import subprocess
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import winhost_weights
from winhost import __version__
from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, WinhostError, visible
from winhost_weights.container import BadContainer, read, weights

NVCOMP = "nvidia-nvcomp-cu13==6.0.0.12"  # docs/evidence/packed-weights.md
NVCOMP_LOCK = f"""\
{NVCOMP} --hash=sha256:8386ba3ab6c968d001138eda0f66fe7b7a847e7241384a63232b1c2d50a79d74
nvidia-libnvcomp-cu13==6.0.0.12 --hash=sha256:d1cf156f7885b9b1ad17ac0059b678e04869466f81207e51fed330f8ffbfcd5a
"""
"""The wheels of NVCOMP on PyPI for x86_64; they are the same for Python 3.9 to 3.14."""
WHEEL = f"winhost_weights-{__version__}-py3-none-any.whl"
_INFO = f"winhost_weights-{__version__}.dist-info"
METADATA = (
    f"Metadata-Version: 2.1\nName: winhost-weights\nVersion: {__version__}\nRequires-Python: >=3.10\n"
    f"License: Apache-2.0\nRequires-Dist: {NVCOMP}\n"
)
ENTRY_POINTS = "[vllm.general_plugins]\nwinhost_packed = winhost_weights.vllm_loader:register\n"
_DATE = (1980, 1, 1, 0, 0, 0)  # a fixed date, so that the same package is always the same file
_TEXTS = {
    "METADATA": METADATA,
    "WHEEL": "Wheel-Version: 1.0\nGenerator: winhost\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "entry_points.txt": ENTRY_POINTS,
}


@dataclass(frozen=True)
class WeightsFile:
    """A file of weights. original, packed: its size in bytes."""

    file: str
    original: int
    packed: int


def packed_files(folder: Path) -> Iterator[WeightsFile]:
    """Read the headers of the packed files. Raises WinhostError (NotPacked)."""
    try:
        for path in weights(folder):
            yield WeightsFile(path.name, read(path).original_size, path.stat().st_size)
    except (BadContainer, OSError) as error:
        raise packing_error(str(error)) from error


def packing_error(text: str) -> WinhostError:
    return WinhostError(
        "NotPacked", what=visible(text), meaning="Nothing of this file was used, and nothing was changed."
    )


def package_texts() -> dict[str, str]:
    """Return the texts of the loader's modules, by the names of their files."""
    package = Path(winhost_weights.__file__).parent
    return {path.name: path.read_text("utf-8") for path in sorted(package.glob("*.py"))}


def write_wheel(folder: Path) -> Path:
    """Write the wheel with which an engine's Python loads packed models. The engine needs NVCOMP as well."""
    files = {f"winhost_weights/{name}": text.encode() for name, text in package_texts().items()}
    files |= {f"{_INFO}/{name}": text.encode() for name, text in _TEXTS.items()}
    record = ""
    for name, data in files.items():
        digest = urlsafe_b64encode(sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files[f"{_INFO}/RECORD"] = f"{record}{_INFO}/RECORD,,\n".encode()
    wheel = folder / WHEEL
    partial = wheel.with_suffix(".partial")
    with zipfile.ZipFile(partial, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), data)
    partial.replace(wheel)
    return wheel


def run_in_engine(python: str, wheel: Path, command: str, *folders: Path) -> Iterator[WeightsFile]:
    """Run a command of winhost_weights in a Python with torch, and yield the files that it reports. Raises UsageError
    (NoPacker), WinhostError (NotPacked).
    """
    arguments = [python, "-m", "winhost_weights", command, *map(str, folders)]
    path = os.pathsep.join(filter(None, (str(wheel), os.environ.get("PYTHONPATH"))))
    try:
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path})  # noqa: S603 - the user's own Python, no shell
    except OSError as error:
        raise _packer_error(f"{python} cannot be started: {error.strerror}") from error
    with process:
        assert process.stdout
        for line in process.stdout:
            if (report := _parse_report(line)) is None:
                continue  # a line of some library
            if "lacks" in report:
                raise _packer_error(f"{python} cannot do it: {report['lacks']}")
            if "error" in report:
                raise packing_error(report["error"])
            sizes = (report["before"], report["after"])
            original, packed = sizes if command in ("pack", "replace") else reversed(sizes)
            yield WeightsFile(report["file"], original, packed)
    if process.returncode:
        raise _packer_error(f"{python} ended with code {process.returncode}, and said why")


def _parse_report(line: str) -> dict[str, Any] | None:
    try:
        report = json.loads(line)
    except ValueError:
        return None
    return report if isinstance(report, dict) and report.keys() & {"lacks", "error", "file"} else None


def _packer_error(what: str) -> UsageError:
    return UsageError(
        "NoPacker",
        what=visible(what),
        meaning=f"Packing needs an NVIDIA GPU, and a Python with torch and {NVCOMP}, as an engine has.",
        hint="Name that Python: --python PATH",
    )
