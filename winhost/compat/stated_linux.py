"""A Linux of which nobody has facts: what somebody says of its GPUs and memory. Everything else about it is unknown."""

import re

from winhost.core.answers import NOT_THERE, Record
from winhost.model.documents import plain
from winhost.model.facts import Facts
from winhost.model.units import Bytes, parse_size
from winhost.resources.host import HostFacts
from winhost.resources.linux.linux_gpu import LinuxGpu
from winhost.resources.linux.linux_system import LinuxSystem

_GPUS = re.compile(r"([1-9][0-9]?)x(.+)")


def stated_linux(gpus: str, memory: Bytes) -> HostFacts:
    """gpus: as 2x48GiB, all alike. Raises ValueError."""
    found = _GPUS.fullmatch(gpus)
    if found is None:
        raise ValueError("should be a number of GPUs and the memory of each, such as 2x48GiB")
    vram = parse_size(found[2])
    unknown = plain(NOT_THERE)
    system = {**dict.fromkeys(LinuxSystem.__annotations__, unknown), "wsl": False, "memory": memory}
    system["virtualization"] = "nobody said"  # so that GPUs are not taken to reach each other
    gpu = {**dict.fromkeys(LinuxGpu.__annotations__, unknown), "device": None, "driver": None}
    gpu |= {"name": "GPU", "vram": vram}
    cards = tuple(Record(gpu, {"address": f"0000:{number:02x}:00.0"}) for number in range(1, int(found[1]) + 1))
    resources = {
        LinuxSystem.resource_type.name: (Record(system),),
        LinuxGpu.resource_type.name: cards,
    }
    return HostFacts(Facts("stated", "synthetic", "", "", resources))
