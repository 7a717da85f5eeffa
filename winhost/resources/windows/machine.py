"""Processors, memory and disks: what there is to give away."""

from winhost.model.units import Bytes
from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("Processor", key=("socket",)))
class Processor(State):
    """One socket."""

    name: str
    manufacturer: str
    cores: int
    threads: int


@resource(ResourceType("Memory"))
class Memory(State):
    """Physical memory, in bytes. `free` moves from read to read."""

    total: Bytes
    free: Bytes


@resource(ResourceType("Disk", key=("disk",)))
class Disk(State):
    """A disk by its unique id. `size` in bytes; `style`: GPT, MBR or RAW."""

    model: str
    bus: str
    size: Bytes
    style: str
    boot: bool
    system: bool
