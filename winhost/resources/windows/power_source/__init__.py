"""The power source of the host."""

from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("PowerSource", title="the power source", order=80))
class PowerSource(State):
    """on_battery: it runs on a battery now. A desktop or a server has none, and a UPS may count as one."""

    batteries: int
    on_battery: bool
