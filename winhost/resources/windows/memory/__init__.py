"""The memory."""

from winhost.model.units import Bytes
from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("Memory", title="the memory", order=60))
class Memory(State):
    """Physical memory, in bytes. `free` moves from read to read."""

    total: Bytes
    free: Bytes
