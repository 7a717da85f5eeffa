"""Memory modes of VMs."""

from winhost.model.units import Bytes
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import DEVICES
from winhost.resources.values import FLAG
from winhost.resources.windows.vm_power import VM_OFF


@resource(
    ResourceType(
        "VmMemory",
        title="memory modes of VMs",
        order=220,
        key=("vm",),
        sets={"dynamic": FLAG},
        requires="HyperVRole",
        after=("OwnVm",),
        needs=(VM_OFF,),
        rests=DEVICES,
    )
)
class VmMemory(State):
    """Memory of a VM in bytes. Only the mode is changed here: an assigned device needs all of `startup` pinned."""

    dynamic: bool
    startup: Bytes
    minimum: Bytes
    maximum: Bytes
