"""The packages that save a process with its GPU state to disk, for workloads that ask for it."""

import re
from contextlib import suppress

from winhost.core.answers import MissingFact, Unavailable
from winhost.model.errors import RefusedError, visible
from winhost.model.workload import Workload
from winhost.resources.host import HostFacts
from winhost.resources.linux.apt_packages import AptPackages
from winhost.resources.linux.read_only import LinuxSystem

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
    with suppress(MissingFact):
        state = facts.of(AptPackages, {"packages": CRIU})
        for line in state.to_add if state else ():
            name, _, version = line.partition(" ")
            if name == CRIU and (found := re.match(r"(\d+)\.(\d+)", version)):
                least = (4, 2) if _kernel(facts) >= (6, 16) else (4, 1)
                return version if (int(found[1]), int(found[2])) < least else None
    return None


def _kernel(facts: HostFacts) -> tuple[int, int]:
    """0.0 where it is not known."""
    with suppress(MissingFact):
        found = re.match(r"(\d+)\.(\d+)", facts.the(LinuxSystem).kernel)
        return (int(found[1]), int(found[2])) if found else (0, 0)
    return 0, 0


def _is_offered(facts: HostFacts) -> bool:
    """Also where the facts do not tell."""
    with suppress(MissingFact):
        state = facts.of(AptPackages, {"packages": CRIU})
        try:
            return state is None or state.installed is not False or state.to_add is not None
        except MissingFact as missing:
            return not isinstance(missing.missing, Unavailable)
    return True
