"""Wheels made of installed packages: what an index would give, where a machine has the packages and no network.

    python3 tests/gpu/wheelhouse.py OUT FOLDER…

FOLDERS are site-packages, the first ones first; without any, those of this Python. Only what `vllm` needs is taken.
A wheel made so has the files of the package and none of its bytecode; its hash is its own, and no index has it.
"""

import os
import sys
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = "vllm"
# What a vLLM imports where it is there, and requires by no word.
UNSTATED = ("accelerate", "pandas", "peft", "scipy", "wheel", "cffi", "pycparser", "tabulate", "grpcio", "nvidia-ml-py")


def needed(found: dict[str, Distribution], root: str = ROOT) -> list[str]:
    """The package and all that it requires, of what is there."""
    left, seen = [(name, "") for name in (root, *UNSTATED)], set[tuple[str, str]]()
    while left:
        name, extra = left.pop()
        if (name, extra) in seen or name not in found:
            continue
        seen.add((name, extra))
        for requirement in map(Requirement, found[name].requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                left += [(canonicalize_name(requirement.name), each) for each in ("", *requirement.extras)]
    return sorted({name for name, _ in seen})


def files_of(package: Distribution, site: Path) -> Iterator[Path]:
    """By its record; one without has the folders that it names, and its own."""
    listed = package.files or []
    if not listed:
        tops = (package.read_text("top_level.txt") or "").split()
        own = Path(str(package.locate_file(""))) / _info(package).name
        for top in (*(site / each for each in tops), own):
            yield from (path for path in top.rglob("*") if path.is_file())
        return
    for each in listed:
        path = site / each
        if ".." not in each.parts and path.is_file():
            yield path


def _info(package: Distribution) -> Path:
    return Path(package._path)  # type: ignore[attr-defined]


def make(package: Distribution, out: Path, version: str | None = None) -> Path:
    """version: instead of its own, in its name and its metadata."""
    info = _info(package)
    site, own = info.parent, package.version
    files = [path for path in files_of(package, site) if path.suffix != ".pyc"]
    binary = any(path.suffix == ".so" or ".so." in path.name for path in files)
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    tags = f"{tag}-{tag}-linux_{os.uname().machine}" if binary else "py3-none-any"
    name = canonicalize_name(package.metadata["Name"]).replace("-", "_")
    wheel = out / f"{name}-{version or own}-{tags}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED, strict_timestamps=False) as archive:
        for path in sorted({*files}):
            below = path.relative_to(site).as_posix()
            if version and below == f"{info.name}/METADATA":
                text = path.read_text("utf-8").replace(f"\nVersion: {own}\n", f"\nVersion: {version}\n")
                archive.writestr(below, text)
            elif path.name != "direct_url.json":
                archive.write(path, below)
    return wheel


def main(words: Sequence[str]) -> None:
    out = Path(words[0])
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, Distribution] = {}
    for package in distributions(path=[*words[1:]] or sys.path):
        found.setdefault(canonicalize_name(package.metadata["Name"]), package)
    if ROOT not in found:
        sys.exit(f"no package {ROOT} in {' '.join(words[1:]) or 'this Python'}")
    with ProcessPoolExecutor() as pool:
        for each in (*(pool.submit(make, found[name], out) for name in needed(found)), pool.submit(_newer, found, out)):
            each.result()


def _newer(found: dict[str, Distribution], out: Path) -> None:
    """The same vLLM under another version, for an upgrade."""
    make(found[ROOT], out, f"{found[ROOT].version}.post1")


if __name__ == "__main__":
    main(sys.argv[1:])
