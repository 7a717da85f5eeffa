"""Automatic actions of VMs."""

from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import DEVICES
from winhost.resources.values import one_of
from winhost.resources.windows.vm_power import VM_OFF


@resource(
    ResourceType(
        "VmActions",
        title="automatic actions of VMs",
        order=200,
        key=("vm",),
        sets={
            "stop": one_of("turn-off", "save", "shut-down"),
            "start": one_of("nothing", "start-if-running", "start"),
        },
        requires="HyperVRole",
        after=("OwnVm",),
        needs=(VM_OFF,),
        rests=DEVICES,
    )
)
class VmActions(State):
    """The actions on the VM when the host stops or starts.

    stop: turn-off, save or shut-down; start: nothing, start-if-running or start. A VM with an assigned device cannot be
    saved, so `stop` must not be `save`.
    """

    stop: str
    start: str
