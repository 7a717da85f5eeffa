"""The hardware clock: what Windows takes it for."""

from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("HardwareClock", title="the hardware clock", order=82))
class HardwareClock(State):
    """utc: Windows takes it for UTC, as Linux does by default; else for local time, as Windows does by default."""

    utc: bool
