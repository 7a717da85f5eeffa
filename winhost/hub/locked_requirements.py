"""Requirements of Python packages that are locked by hashes, as pip and uv write them."""

import re
from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, visible

_HASH = re.compile(r"--hash[= ]sha256:([0-9a-f]{64})")
_MOST = 2000


@dataclass(frozen=True)
class LockedPackage:
    """hashes: SHA-256 of each file of it that may be taken."""

    name: str
    version: Version
    hashes: frozenset[str]


def locked_packages(text: str, where: str, python: str, machine: str) -> tuple[LockedPackage, ...]:
    """Those that this Linux takes: python as 3.12, machine as uname -m. Raises UsageError: NotLocked."""
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
            raise _not_locked(f"{where}:{number}", f"{package.name} is there twice")
        found[package.name] = package
    if not found or len(found) > _MOST:
        raise _not_locked(where, f"has {len(found)} packages for Python {python} on {machine}")
    return tuple(found.values())


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """With what a backslash joins to them, and without comments."""
    begun, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        plain = re.sub(r"(^|\s)#.*", "", line).strip()
        begun = begun if parts else number
        parts.append(plain.removesuffix("\\").strip())
        if not plain.endswith("\\"):
            if joined := " ".join(filter(None, parts)):
                yield begun, joined
            parts = []
    if joined := " ".join(filter(None, parts)):
        yield begun, joined


def _package(line: str, environment: dict[str, str], where: str) -> LockedPackage | None:
    """None where a marker says that it is for others."""
    wanted, hashes = _HASH.sub("", line).strip(), frozenset(_HASH.findall(line))
    if wanted.startswith("-"):
        raise _not_locked(where, f"{wanted[:60]} is an option of pip, and no package")
    try:
        requirement = Requirement(wanted)
        (pinned,) = requirement.specifier
        version = Version(pinned.version)
    except (InvalidRequirement, InvalidVersion, ValueError):
        raise _not_locked(where, f"{wanted[:60]} does not name one version, as NAME==VERSION") from None
    if pinned.operator != "==" or requirement.url or not hashes:
        raise _not_locked(where, f"{wanted[:60]} has no hash, or not one version")
    if requirement.marker and not requirement.marker.evaluate(environment):
        return None
    return LockedPackage(canonicalize_name(requirement.name), version, hashes)


def _not_locked(where: str, why: str) -> UsageError:
    hint = "Write the file with hashes: uv pip compile --generate-hashes"
    return UsageError("NotLocked", what=f"{visible(where)}: {visible(why)}", hint=hint)
