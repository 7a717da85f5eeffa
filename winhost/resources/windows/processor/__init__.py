"""Processors."""

from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("Processor", title="processors", order=50, key=("socket",)))
class Processor(State):
    """One socket."""

    name: str
    manufacturer: str
    cores: int
    threads: int
