"""Cautions of a WSL 2 plan: consequences of its settings that users should know before they apply it."""

from collections.abc import Collection, Iterator

from winhost.core.answers import MissingFact
from winhost.hardware.host_gpus import memory_of, runs_cuda
from winhost.model.reason import Caution, Severity
from winhost.model.units import about, size
from winhost.paths.never_sleep import cautions_of_sleep
from winhost.paths.playbook import PlaybookResource
from winhost.paths.wsl2_memory import memory
from winhost.paths.wsl2_settings import Wsl2Settings
from winhost.resources.host import HostFacts
from winhost.sizing.host_memory import WINDOWS_USABLE


def cautions(facts: HostFacts, settings: Wsl2Settings, resources: Collection[PlaybookResource]) -> Iterator[Caution]:
    """The cautions from the settings and from the playbook's resources."""
    yield from _of_memory(facts, settings)
    yield from cautions_of_sleep(facts, "wsl2", settings.never_sleep)
    if settings.access.key is None and any(each.resource == "WslAccess" for each in resources):
        yield Caution(
            "wsl.no-way-in",
            Severity.NOTE,
            "Without access.key, the plan ends with the distro: no SSH access, no Docker, no NVIDIA Container Toolkit. "
            'To set them up, now or later, add: --set access.key="$(cat ~/.ssh/id_ed25519.pub)"',
        )
    if settings.administrator:
        yield Caution(
            "wsl.administrator",
            Severity.NOTE,
            f"Account {settings.account} becomes an administrator of this host, and so does all that runs as it.",
        )
    if any(each.resource == "AccountTasks" and each.desired.get("logon") == "s4u" for each in resources):
        yield Caution(
            "wsl.logon-s4u",
            Severity.UNVERIFIED,
            f"The tasks of {settings.account} will log on without a password (S4U).",
        )


def _of_memory(facts: HostFacts, settings: Wsl2Settings) -> Iterator[Caution]:
    """Cautions about memory. Where it is unknown or no setting would be large enough, rules report that instead."""
    try:
        gpus = tuple(filter(runs_cuda, facts.gpus))
        total, gpus_have = facts.memory.total, sum(map(memory_of, gpus))
        given = memory(facts, gpus, settings.stated("memory")).given
    except MissingFact:
        return
    if given < gpus_have <= total:
        yield Caution(
            "wsl.memory-below-cards",
            Severity.DEGRADED,
            f"Linux gets {size(given)} of memory, and the GPUs have {size(gpus_have)}.",
        )
    if total - given < WINDOWS_USABLE:
        yield Caution(
            "wsl.memory-of-windows",
            Severity.DEGRADED,
            f"Linux gets {size(given)} of {about(total)}, which leaves Windows {about(max(0, total - given))}.",
        )
