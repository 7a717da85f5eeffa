"""A PCI function on the ladder from the host to a VM."""

from winhost.core.rules import Condition, ConsentRule, KeepIf, NeedRule, UndoRule
from winhost.resources.base import NOT_TOLD, ResourceType, State, resource
from winhost.resources.values import GUID, text
from winhost.resources.windows.vm_settings import OFF

ENABLED = "host-enabled"
DISABLED = "host-disabled"
DISMOUNTED = "dismounted"
ASSIGNED = "assigned:"


def assigned(vm: str) -> str:
    """The top of the ladder: given to the VM with this GUID."""
    return ASSIGNED + vm


def owner(assignment: str) -> str | None:
    """The GUID of the VM that has it, if one does."""
    return assignment.removeprefix(ASSIGNED) if assignment.startswith(ASSIGNED) else None


@resource(
    ResourceType(
        "AssignableDevice",
        title="devices that can be assigned",
        order=170,
        key=("location", "device"),
        sets={
            "assignment": text(
                f"{ENABLED}|{DISABLED}|{DISMOUNTED}|{ASSIGNED}{GUID}",
                f"{ENABLED}, {DISABLED}, {DISMOUNTED} or {ASSIGNED}GUID",
            )
        },
        after=("HyperVRole", "VmMmio", "VmActions", "VmCheckpoints", "VmMemory"),
        requires="HyperVRole",
        asks=("force-dismount",),
        needs=(NeedRule("VmPower", "vm", {"state": OFF}, property="assignment", starts_with=ASSIGNED),),
        may_need=(
            ConsentRule(
                "force-dismount",
                (
                    Condition("assignment", of="before", one_of=(ENABLED, DISABLED)),
                    Condition("assignment", of="desired", none_of=(ENABLED, DISABLED)),
                ),
            ),
        ),
        # Any lower rung is still our doing; another VM's GPU is not ours to take.
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (Condition("assignment", starts_with=ASSIGNED, differs_from=("before", "after")),),
                    "VM {assignment} has it now",
                ),
            ),
            unconditional=True,
        ),
    )
)
class AssignableDevice(State):
    """assignment: host-enabled, host-disabled, dismounted or assigned:<VM GUID>. `set` walks the ladder both ways.

    Also whatever else a VM claims, which may be no GPU. present: Windows lists a device at this location; a
    VM that claims one where none is does not start.
    """

    assignment: str
    present: bool = NOT_TOLD
