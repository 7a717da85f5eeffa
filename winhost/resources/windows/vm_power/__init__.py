"""Power of VMs."""

from winhost.core.rules import Condition, ConsentRule, NeedRule, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.values import one_of

OFF = "off"
RUNNING = "running"
VM_OFF = NeedRule("VmPower", "vm", {"state": OFF}, key="vm")  # Set-VM refuses otherwise
_RUNNING = Condition("state", of="before", one_of=(RUNNING,))


@resource(
    ResourceType(
        "VmPower",
        title="power of VMs",
        order=230,
        key=("vm",),
        sets={"state": one_of(OFF, RUNNING, "saved", "paused")},
        after=("OwnVm", "VmMmio", "VmActions", "VmCheckpoints", "VmMemory", "AssignableDevice"),
        requires="HyperVRole",
        asks=("vm-stop", "vm-turn-off"),
        undo=UndoRule(ends_with_required=True),
        risks=(ConsentRule("vm-stop", (_RUNNING,)),),
        may_need=(ConsentRule("vm-turn-off", (_RUNNING,)),),
    )
)
class VmPower(State):
    """off, running, saved or paused. Stopping asks the guest and waits; turning off has its own consent."""

    state: str
