"""The memory that a variant provides for a workload: as read, or as it would be set up."""

from winhost.compat.gpu_cards import gpus
from winhost.compat.target import Target
from winhost.core.answers import NOT_THERE, MissingFact
from winhost.hardware.cards import memory_of
from winhost.model.path import AvailableMemory
from winhost.model.units import Bytes
from winhost.sizing.host_memory import WINDOWS, wsl_default_ram


def available_memory(target: Target) -> AvailableMemory:
    """Raises MissingFact, always for partitions: facts do not contain their size."""
    if target.path == "gpu-p":
        raise MissingFact("the size of a GPU partition", NOT_THERE)
    cards, host = tuple(map(memory_of, gpus(target))), target.memory
    ram = _ram(target.path, host)
    shared = target.path in ("wsl2", "wslc")
    return AvailableMemory(target.variant, cards, ram, host, shm=ram // 2, pinned=None if shared else ram)


def _ram(path: str, host: Bytes) -> Bytes:
    """A VM can get everything but what Windows needs; WSL gets half unless .wslconfig says otherwise."""
    match path:
        case "dda":
            return max(host - WINDOWS, 0)
        case "wsl2" | "wslc":
            return wsl_default_ram(host)
        case _:
            return host
