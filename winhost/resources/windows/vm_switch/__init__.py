"""Virtual switches."""

from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("VmSwitch", title="virtual switches", order=110, key=("switch",), requires="HyperVRole"))
class VmSwitch(State):
    """A virtual switch by its GUID. kind: external, internal or private; adapter: the card an external one sits on."""

    name: str
    kind: str
    adapter: str | None
    management_os: bool
