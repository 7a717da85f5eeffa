"""The power of a VM, and settings that one cmdlet changes."""

from winhost.core.rules import Condition, ConsentRule, NeedRule, UndoRule
from winhost.model.units import Bytes, MiB
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import DEVICES
from winhost.resources.values import FLAG, one_of, sizes

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


@resource(
    ResourceType(
        "VmMmio",
        title="MMIO windows of VMs",
        order=190,
        key=("vm",),
        sets={"low": sizes(2 * MiB), "high": sizes(2 * MiB), "cache": FLAG},
        requires="HyperVRole",
        after=("OwnVm",),
        needs=(VM_OFF,),
        dependents=DEVICES,
    )
)
class VmMmio(State):
    """MMIO windows of a VM. Sizes in bytes, multiples of 2 MiB (Set-VM); cache: guest-controlled cache types."""

    low: Bytes
    high: Bytes
    cache: bool


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
        dependents=DEVICES,
    )
)
class VmActions(State):
    """The actions on the VM when the host stops or starts.

    stop: turn-off, save or shut-down; start: nothing, start-if-running or start. A VM with an assigned device cannot be
    saved, so `stop` must not be `save`.
    """

    stop: str
    start: str


@resource(
    ResourceType(
        "VmCheckpoints",
        title="checkpoints of VMs",
        order=210,
        key=("vm",),
        sets={"kind": one_of("disabled", "production", "production-only", "standard"), "automatic": FLAG},
        requires="HyperVRole",
        after=("OwnVm",),
        dependents=DEVICES,
    )
)
class VmCheckpoints(State):
    """kind: disabled, production, production-only or standard; automatic: one at each start."""

    kind: str
    automatic: bool


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
        dependents=DEVICES,
    )
)
class VmMemory(State):
    """Memory of a VM in bytes. Only the mode is changed here: an assigned device needs all of `startup` pinned."""

    dynamic: bool
    startup: Bytes
    minimum: Bytes
    maximum: Bytes
