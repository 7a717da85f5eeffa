"""Choose the package of the distribution that brings `docker compose`."""

from winhost.core.answers import MissingFact
from winhost.paths.linux_engine import DOCKER, PACKAGES
from winhost.resources.host import HostFacts
from winhost.resources.linux.apt_packages import AptPackages
from winhost.resources.linux.read_only import ContainerEngine, LinuxSystem

_FIRST_OF_DEBIAN = 13  # docker-compose of Debian 12 is version 1, a program of its own


def compose_package(facts: HostFacts) -> str | None:
    """None where the distribution has none, and where Docker did not come from the distribution. Raises MissingFact."""
    if not facts.is_linux:
        return None
    try:
        there = any(each.key["engine"] == DOCKER for each in facts.all(ContainerEngine))
        state = facts.of(AptPackages, {"packages": PACKAGES[DOCKER]})
        if there and (state is None or state.installed is not True):
            return None
    except MissingFact:
        return None
    system = facts.the(LinuxSystem)
    if system.id == "ubuntu":
        return "docker-compose-v2"
    first = (system.version or "").partition(".")[0]
    return "docker-compose" if system.id == "debian" and first.isdecimal() and int(first) >= _FIRST_OF_DEBIAN else None
