"""What saves a process with its GPU state to disk, for workloads that ask for it."""

from contextlib import suppress

from winhost.core.answers import MissingFact, Unavailable
from winhost.model.errors import RefusedError, visible
from winhost.model.workload import Needs
from winhost.resources.host import HostFacts
from winhost.resources.linux.apt_packages import AptPackages

CRIU = "criu"


def criu_packages(facts: HostFacts, needs: Needs) -> str | None:
    """One key of AptPackages; None where it is not asked for, or would only be nice and no source has it.

    Raises RefusedError: NoCriu.
    """
    if not facts.is_linux or CRIU not in (*needs.must, *needs.nice):
        return None
    if _is_offered(facts):
        return CRIU
    if CRIU not in needs.must:
        return None
    raise RefusedError(
        "NoCriu",
        what=f"the workload needs CRIU, and no package source of {visible(facts.host)} has it",
        hint="Ubuntu has it from 25.10 on. For 24.04 (unverified): sudo add-apt-repository ppa:criu/ppa",
    )


def _is_offered(facts: HostFacts) -> bool:
    """Also where the facts do not tell."""
    with suppress(MissingFact):
        state = facts.of(AptPackages, {"packages": CRIU})
        try:
            return state is None or state.installed is not False or state.to_add is not None
        except MissingFact as missing:
            return not isinstance(missing.missing, Unavailable)
    return True
