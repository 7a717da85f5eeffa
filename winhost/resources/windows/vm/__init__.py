"""Virtual machines, whoever made them. Those of winhost's own are resource OwnVm as well."""

from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("Vm", title="VMs", order=180, key=("vm",), requires="HyperVRole"))
class Vm(State):
    """A VM by its GUID. Names are for people: Hyper-V allows the same one twice.

    version: configuration version, as `12.0`; nested: exposes virtualization extensions; secure_boot_template: null on
    generation 1; devices: location paths assigned to it; partitions: GPU-P adapters it has.
    """

    name: str
    state: str
    generation: int
    version: str
    nested: bool
    clustered: bool
    checkpoints: int
    secure_boot: bool
    secure_boot_template: str | None
    devices: tuple[str, ...]
    partitions: int
