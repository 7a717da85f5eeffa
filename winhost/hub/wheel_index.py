"""Which wheels of locked packages a Linux takes, as an index of Python packages lists them: PEP 691, in JSON."""

import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urljoin, urlsplit

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from winhost.core.dataclass import dataclass
from winhost.hub.locked_requirements import LockedPackage
from winhost.model.errors import WinhostError, visible
from winhost.model.units import Bytes, MiB
from winhost.web.asking import NotAnswered, ask, parsed

PYPI = "https://pypi.org/simple"
_MOST: Bytes = 64 * MiB  # of one package, with all files that it ever had
_ACCEPT = {"Accept": "application/vnd.pypi.simple.v1+json"}


@dataclass(frozen=True)
class PythonPlace:
    """version: of Python, as 3.12; glibc: 39 of 2.39; machine: as uname -m."""

    version: str
    glibc: int
    machine: str

    @property
    def tags(self) -> tuple[Tag, ...]:
        """The best first."""
        platforms = [f"manylinux_2_{minor}_{self.machine}" for minor in range(self.glibc, 4, -1)]
        for minor, old in ((17, "manylinux2014"), (12, "manylinux2010"), (5, "manylinux1")):
            platforms.insert(platforms.index(f"manylinux_2_{minor}_{self.machine}") + 1, f"{old}_{self.machine}")
        platforms.append(f"linux_{self.machine}")
        major, minor = map(int, self.version.split("."))
        short = f"cp{major}{minor}"
        return (
            *cpython_tags((major, minor), [short], platforms),
            *compatible_tags((major, minor), short, platforms),
        )


@dataclass(frozen=True)
class Wheel:
    """path: below the server of its index."""

    server: str
    path: str
    sha256: str
    bytes: Bytes

    @property
    def line(self) -> str:
        """As ModelFiles has it."""
        return f"sha256:{self.sha256} {self.bytes} {self.path}"


def wheels_of(packages: Sequence[LockedPackage], place: PythonPlace, index: str = PYPI) -> tuple[Wheel, ...]:
    """One for each. Raises WinhostError: NoWheel."""
    ranks = {tag: rank for rank, tag in reversed([*enumerate(place.tags)])}
    found = tuple(_wheel(package, ranks, place, index.rstrip("/")) for package in packages)
    servers = {each.server for each in found}
    if len(servers) > 1:
        raise _no_wheel(index, f"has its files on {len(servers)} servers: {', '.join(sorted(servers))}")
    return found


def _wheel(package: LockedPackage, ranks: dict[Tag, int], place: PythonPlace, index: str) -> Wheel:
    offered = [
        (rank, each) for each in _files(package.name, index) if (rank := _rank(each, package, ranks)) is not None
    ]
    if not offered:
        why = (
            f"has no wheel of {package.name} {package.version} for Python {place.version} and glibc 2.{place.glibc} on "
        )
        raise _no_wheel(index, f"{why}{place.machine} that is in the lock")
    _, best = min(offered, key=lambda each: each[0])
    return _as_wheel(best, index, package.name)


def _rank(file: dict[str, Any], package: LockedPackage, ranks: dict[Tag, int]) -> int | None:
    """None of a file that is not in the lock, or not for this place."""
    name, hashes = file.get("filename"), file.get("hashes")
    if not isinstance(name, str) or not isinstance(hashes, dict) or hashes.get("sha256") not in package.hashes:
        return None
    try:
        _, version, _, tags = parse_wheel_filename(name)
    except InvalidWheelFilename:
        return None
    fitting = [ranks[tag] for tag in tags if tag in ranks]
    return min(fitting) if fitting and version == package.version else None


def _files(name: str, index: str) -> Iterator[dict[str, Any]]:
    url = f"{index}/{name}/"
    try:
        answer = ask(url, _MOST, headers=_ACCEPT)
        document = parsed(answer.body) if answer.status == 200 else None
    except (NotAnswered, ValueError) as error:
        raise _no_wheel(index, f"does not list {name}: {error}") from None
    files = document.get("files") if isinstance(document, dict) else None
    if not isinstance(files, list):
        raise _no_wheel(index, f"does not list {name} as PEP 691 has it ({answer.status})")
    yield from ({**each, "url": urljoin(answer.url, str(each.get("url")))} for each in files if isinstance(each, dict))


def _as_wheel(file: dict[str, Any], index: str, name: str) -> Wheel:
    """Its path becomes one on the Linux that serves."""
    place, size = urlsplit(str(file["url"])), file.get("size")
    path = place.path.lstrip("/")
    plain = re.fullmatch(r"[A-Za-z0-9._+/-]{1,400}\.whl", path) and not {"", ".", ".."} & {*path.split("/")}
    if not plain or place.query or place.scheme not in ("https", "http") or type(size) is not int or size < 1:
        raise _no_wheel(index, f"names a file of {name} that winhost does not take: {place.geturl()[:200]}")
    return Wheel(f"{place.scheme}://{place.netloc}", path, str(file["hashes"]["sha256"]), size)


def _no_wheel(index: str, why: str) -> WinhostError:
    hint = "Compile the lock for that Python: uv pip compile --generate-hashes --python-version VERSION"
    return WinhostError("NoWheel", what=f"{visible(index)} {visible(why)}", hint=hint)
