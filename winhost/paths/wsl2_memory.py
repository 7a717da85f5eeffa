"""The memory of WSL's Linux VM."""

from collections.abc import Sequence

from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass
from winhost.hardware.host_gpus import memory_of
from winhost.model.units import Bytes, MiB, about, size
from winhost.resources.host import Gpu, HostFacts
from winhost.sizing.host_memory import WINDOWS_USABLE, wsl_default_ram


@dataclass(frozen=True)
class WslMemory:
    """given: bytes for the Linux VM; why: the size as text, with the reason."""

    given: Bytes
    why: str


def memory(facts: HostFacts, gpus: Sequence[Gpu], stated: Bytes | None) -> WslMemory:
    """Give WSL at least the memory of all GPUs, if the host has as much besides what Windows needs. Raises MissingFact.
    With less than the GPUs have, WSL was seen to fail on them (microsoft/WSL #40678); by itself it takes half of the
    host's memory.
    """
    total = facts.memory.total
    if stated is not None:
        return WslMemory(stated, f"{size(stated)} as you set it")
    half, most = wsl_default_ram(total), total - WINDOWS_USABLE
    if most < half:
        given = half // MiB * MiB
        small = f"half of the host's {about(total)}, as WSL takes by itself: beside what Windows needs there is no more"
        return WslMemory(given, f"{size(given)}, {small}")
    try:
        gpus_have = sum(map(memory_of, gpus))
    except MissingFact as missing:
        given = half // MiB * MiB
        return WslMemory(given, f"{size(given)}, half of the host's {about(total)}, because {missing}")
    given = max(half, min(gpus_have, most)) // MiB * MiB
    larger = f"the larger of half the host's {about(total)} and the {size(gpus_have)} of its GPUs"
    return WslMemory(given, f"{size(given)}, {larger}, and {size(WINDOWS_USABLE)} stay with Windows")
