"""The Python and the C library of a distribution, by which wheels are chosen."""

from winhost.core.answers import MissingFact
from winhost.resources.host import HostFacts
from winhost.resources.linux.read_only import LinuxSystem

# Python and the minor version of glibc: https://packages.ubuntu.com, https://packages.debian.org
_OF: dict[tuple[str, str], tuple[str, int]] = {
    ("ubuntu", "22.04"): ("3.10", 35),
    ("ubuntu", "24.04"): ("3.12", 39),
    ("debian", "12"): ("3.11", 36),
    ("debian", "13"): ("3.13", 41),
}
_OLDEST = 28  # of glibc, where only the Python is said: what wheels of today are made for


def python_of(facts: HostFacts, stated: str | None) -> tuple[str, int, str] | None:
    """Version, glibc and machine; None where nobody knows the Python. stated: by the user, for a Linux to come."""
    try:
        system = facts.the(LinuxSystem)
        known, machine = _OF.get((system.id, system.version or "")), system.architecture
    except MissingFact:
        known, machine = None, "x86_64"
    if stated is not None and (known is None or known[0] != stated):
        return stated, _OLDEST, machine
    return (*known, machine) if known else None
