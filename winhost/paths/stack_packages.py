"""Packages of the distribution that a workload may need: `docker compose`, CRIU, FFmpeg with the driver's libraries."""

import re
from contextlib import suppress

from winhost.core.answers import MissingFact, Unavailable, if_known
from winhost.model.errors import RefusedError, UsageError, visible
from winhost.model.workload import Workload
from winhost.paths.linux import DOCKER, PACKAGES, wanted_driver
from winhost.resources.host import HostFacts
from winhost.resources.linux.packages import AptPackages
from winhost.resources.linux.read_only import ContainerEngine, LinuxSystem

_FIRST_OF_DEBIAN = 13  # docker-compose of Debian 12 is version 1, a program of its own


def compose_package(facts: HostFacts) -> str | None:
    """The package of Compose; None where the distribution has none or did not provide Docker. Raises MissingFact."""
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


CRIU = "criu"


def criu_packages(facts: HostFacts, workload: Workload) -> str | None:
    """One key of AptPackages; None where it is not asked for, or would only be nice and no source has it.

    Raises RefusedError: NoCriu, OldCriu.
    """
    needs = workload.needs
    imaged = [model.name for model in workload.models if model.image]
    if not facts.is_linux or not (imaged or CRIU in (*needs.must, *needs.nice)):
        return None
    if _is_offered(facts):
        if imaged and (old := _old(facts)):
            raise RefusedError(
                "OldCriu",
                what=f"CRIU {old} cannot write the image of {visible(imaged[0])}",
                meaning="CRIU before 4.1 does not start on kernels of today, and CRIU 4.1 saves no connection on Linux "
                "6.16 and later.",
                hint="Leave suspend: disk out, or add a package source with CRIU 4.2 (Ubuntu 26.04 has it).",
            )
        return CRIU
    if not imaged and CRIU not in needs.must:
        return None
    raise RefusedError(
        "NoCriu",
        what=f"the workload needs CRIU, and no package source of {visible(facts.host)} has it",
        hint="Ubuntu has it from 25.10 on. For 24.04 (unverified): sudo add-apt-repository ppa:criu/ppa",
    )


def _old(facts: HostFacts) -> str | None:
    """The version that would be installed, where it is known and too old."""
    kernel = if_known(lambda: facts.the(LinuxSystem).kernel)
    least = (4, 2) if kernel and _begin(kernel) >= (6, 16) else (4, 1)
    with suppress(MissingFact):
        state = facts.of(AptPackages, {"packages": CRIU})
        for line in state.to_add if state else ():
            name, _, version = line.partition(" ")
            if name == CRIU and _begin(version) != (0, 0):
                return version if _begin(version) < least else None
    return None


def _begin(version: str) -> tuple[int, int]:
    """The first two numbers of a version; 0.0 where it does not begin with them."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _is_offered(facts: HostFacts) -> bool:
    """True if the sources offer CRIU, also where the facts do not tell."""
    with suppress(MissingFact):
        state = facts.of(AptPackages, {"packages": CRIU})
        try:
            return state is None or state.installed is not False or state.to_add is not None
        except MissingFact as missing:
            return not isinstance(missing.missing, Unavailable)
    return True


_BRANCH = re.compile(r"nvidia-headless-no-dkms-(\d+(?:-server)?)")


def video_packages(facts: HostFacts) -> str:
    """One key of AptPackages. Ubuntu's sets of the driver for servers lack the libraries for video; NVIDIA's installer
    brings them, and WSL has those of Windows.
    """
    names = ["ffmpeg"]
    if facts.is_linux:
        with suppress(MissingFact, UsageError):
            choice = wanted_driver(facts)
            found = _BRANCH.search(choice.packages) if choice else None
            names += [f"libnvidia-{what}-{found[1]}" for what in ("decode", "encode")] if found else []
    return " ".join(sorted(names))
