"""Power of VMs."""

from collections.abc import Iterable

from winhost.core.steps import Change, Need
from winhost.resources.base import ResourceType, State, by_hand, resource
from winhost.resources.values import one_of

OFF = "off"
RUNNING = "running"


@by_hand("vm-off")
def vm_off(change: Change) -> Iterable[Need]:
    """The VM must be off while this changes (Set-VM refuses otherwise)."""
    return (Need("VmPower", {"vm": change.key["vm"]}, {"state": OFF}),)


@by_hand("stops-a-vm")
def _power_risks(change: Change) -> Iterable[str]:
    return ("vm-stop",) if change.before["state"] == RUNNING else ()


def _power_may_need(change: Change) -> Iterable[str]:
    return ("vm-turn-off",) if change.before["state"] == RUNNING else ()


@resource(
    ResourceType(
        "VmPower",
        title="power of VMs",
        order=230,
        key=("vm",),
        sets={"state": one_of(OFF, RUNNING, "saved", "paused")},
        after=("VmMmio", "VmActions", "VmCheckpoints", "VmMemory", "AssignableDevice"),
        requires="HyperVRole",
        asks=("vm-stop", "vm-turn-off"),
        risks=_power_risks,
        may_need=_power_may_need,
    )
)
class VmPower(State):
    """off, running, saved or paused. Stopping asks the guest and waits; turning off has its own consent."""

    state: str
