"""Read a lock of Python packages with hashes, and find the wheels of an index for a Python and a machine."""

import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urljoin, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.units import Bytes, MiB
from winhost.web.http_client import NotAnswered, fetch, parse_json

_HASH = re.compile(r"--hash[= ]sha256:([0-9a-f]{64})")
_MAX_PACKAGES = 2000


@dataclass(frozen=True)
class LockedPackage:
    """hashes: SHA-256 of each of its files that the lock allows."""

    name: str
    version: Version
    hashes: frozenset[str]


def locked_packages(text: str, where: str, python: str, machine: str) -> tuple[LockedPackage, ...]:
    """Parse a lock for this Linux. python: its version, such as 3.12; machine: as uname -m prints it. Raises
    UsageError: NotLocked.
    """
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": machine,
        "extra": "",
    }
    found: dict[str, LockedPackage] = {}
    for number, line in _lines(text):
        package = _package(line, environment, f"{where}:{number}")
        if package is None:
            continue
        if package.name in found and found[package.name] != package:
            raise _lock_error(f"{where}:{number}", f"{package.name} is there twice")
        found[package.name] = package
    if not found or len(found) > _MAX_PACKAGES:
        raise _lock_error(where, f"has {len(found)} packages for Python {python} on {machine}")
    return tuple(found.values())


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines without comments and with the number of their first line. A backslash continues a line."""
    first, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        plain = re.sub(r"(^|\s)#.*", "", line).strip()
        first = first if parts else number
        parts.append(plain.removesuffix("\\").strip())
        if not plain.endswith("\\"):
            if joined := " ".join(filter(None, parts)):
                yield first, joined
            parts = []
    if joined := " ".join(filter(None, parts)):
        yield first, joined


def _package(line: str, environment: dict[str, str], where: str) -> LockedPackage | None:
    """Parse one line of a lock; None if its marker excludes this Linux."""
    text, hashes = _HASH.sub("", line).strip(), frozenset(_HASH.findall(line))
    if text.startswith("-"):
        raise _lock_error(where, f"{text[:60]} is an option of pip, and no package")
    try:
        requirement = Requirement(text)
        (pinned,) = requirement.specifier
        version = Version(pinned.version)
    except (InvalidRequirement, InvalidVersion, ValueError):
        raise _lock_error(where, f"{text[:60]} does not name one version, as NAME==VERSION") from None
    if pinned.operator != "==" or requirement.url or not hashes:
        raise _lock_error(where, f"{text[:60]} has no hash, or not one version")
    if requirement.marker and not requirement.marker.evaluate(environment):
        return None
    return LockedPackage(canonicalize_name(requirement.name), version, hashes)


def _lock_error(where: str, why: str) -> UsageError:
    hint = "Write the file with hashes: uv pip compile --generate-hashes"
    return UsageError("NotLocked", what=f"{visible(where)}: {visible(why)}", hint=hint)


PYPI = "https://pypi.org/simple"
_MAX_ANSWER: Bytes = 64 * MiB  # the list of all files that a package ever had
_ACCEPT = {"Accept": "application/vnd.pypi.simple.v1+json"}


@dataclass(frozen=True)
class TargetPython:
    """version: of Python, such as 3.12; glibc: its minor version, 39 for 2.39; machine: as uname -m prints it."""

    version: str
    glibc: int
    machine: str

    @property
    def tags(self) -> tuple[Tag, ...]:
        """The tags of compatible wheels, the best first."""
        platforms = [f"manylinux_2_{minor}_{self.machine}" for minor in range(self.glibc, 4, -1)]
        for minor, old in ((17, "manylinux2014"), (12, "manylinux2010"), (5, "manylinux1")):
            platforms.insert(platforms.index(f"manylinux_2_{minor}_{self.machine}") + 1, f"{old}_{self.machine}")
        platforms.append(f"linux_{self.machine}")
        major, minor = map(int, self.version.split("."))
        short = f"cp{major}{minor}"
        return (*cpython_tags((major, minor), [short], platforms), *compatible_tags((major, minor), short, platforms))


@dataclass(frozen=True)
class Wheel:
    """path: of the file on its server."""

    server: str
    path: str
    sha256: str
    bytes: Bytes

    @property
    def line(self) -> str:
        """`sha256:HASH SIZE PATH`, as in ModelFiles."""
        return f"sha256:{self.sha256} {self.bytes} {self.path}"


def wheels_of(packages: Sequence[LockedPackage], target: TargetPython, index: str = PYPI) -> tuple[Wheel, ...]:
    """Find the best wheel of each package. Raises WinhostError: NoWheel."""
    ranks = {tag: rank for rank, tag in reversed([*enumerate(target.tags)])}
    found = tuple(_wheel(package, ranks, target, index.rstrip("/")) for package in packages)
    servers = {each.server for each in found}
    if len(servers) > 1:
        raise _wheel_error(index, f"has its files on {len(servers)} servers: {', '.join(sorted(servers))}")
    return found


def _wheel(package: LockedPackage, ranks: dict[Tag, int], target: TargetPython, index: str) -> Wheel:
    offered = [
        (rank, each) for each in _files(package.name, index) if (rank := _rank(each, package, ranks)) is not None
    ]
    if not offered:
        wheel = f"{package.name} {package.version} for Python {target.version} and glibc 2.{target.glibc}"
        raise _wheel_error(index, f"has no wheel of {wheel} on {target.machine} that is in the lock")
    _, best = min(offered, key=lambda each: each[0])
    return _parse_wheel(best, index, package.name)


def _rank(file: dict[str, Any], package: LockedPackage, ranks: dict[Tag, int]) -> int | None:
    """Rank a wheel, the best first; None for one that is not in the lock or not for this Linux."""
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
        answer = fetch(url, _MAX_ANSWER, headers=_ACCEPT)
        document = parse_json(answer.body) if answer.status == 200 else None
    except (NotAnswered, ValueError) as error:
        raise _wheel_error(index, f"does not list {name}: {error}") from None
    files = document.get("files") if isinstance(document, dict) else None
    if not isinstance(files, list):
        raise _wheel_error(index, f"does not list {name} as PEP 691 has it ({answer.status})")
    yield from ({**each, "url": urljoin(answer.url, str(each.get("url")))} for each in files if isinstance(each, dict))


def _parse_wheel(file: dict[str, Any], index: str, name: str) -> Wheel:
    """Parse a file of the index, and refuse an unsafe path, because it becomes a path on the Linux that serves."""
    url, size = urlsplit(str(file["url"])), file.get("size")
    path = url.path.lstrip("/")
    plain = re.fullmatch(r"[A-Za-z0-9._+/-]{1,400}\.whl", path) and not {"", ".", ".."} & {*path.split("/")}
    if not plain or url.query or url.scheme not in ("https", "http") or type(size) is not int or size < 1:
        raise _wheel_error(index, f"names a file of {name} that winhost does not take: {url.geturl()[:200]}")
    return Wheel(f"{url.scheme}://{url.netloc}", path, str(file["hashes"]["sha256"]), size)


def _wheel_error(index: str, why: str) -> WinhostError:
    hint = "Compile the lock for that Python: uv pip compile --generate-hashes --python-version VERSION"
    return WinhostError("NoWheel", what=f"{visible(index)} {visible(why)}", hint=hint)
