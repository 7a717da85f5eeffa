"""Virtual machines: adopted, never created, resized or deleted here."""

from collections.abc import Iterable

from winhost.model.units import Bytes, MiB
from winhost.resources.base import Change, Need, ResourceType, Rests, State, resource
from winhost.resources.values import FLAG, one_of, sizes

OFF = "off"
RUNNING = "running"


def vm_off(change: Change) -> Iterable[Need]:
    """The VM must be off while this changes (Set-VM refuses otherwise)."""
    return (Need("VmPower", {"vm": change.key["vm"]}, {"state": OFF}),)


# What the VM has now: its windows, its memory and its automatic actions are as they are for them.
DEVICES = (Rests("AssignableDevice", at=("place", "assigned:{vm}"), lent=True),)


@resource(ResourceType("Vm", key=("vm",), requires="HyperVRole"))
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


@resource(
    ResourceType(
        "VmMmio",
        key=("vm",),
        sets={"low": sizes(2 * MiB), "high": sizes(2 * MiB), "cache": FLAG},
        requires="HyperVRole",
        needs=vm_off,
        rests=DEVICES,
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
        key=("vm",),
        sets={
            "stop": one_of("turn-off", "save", "shut-down"),
            "start": one_of("nothing", "start-if-running", "start"),
        },
        requires="HyperVRole",
        needs=vm_off,
        rests=DEVICES,
    )
)
class VmActions(State):
    """What happens to the VM when the host stops or starts.

    stop: turn-off, save or shut-down; start: nothing, start-if-running or start. A VM with an assigned device cannot
    be saved, so `stop` must not be `save`.
    """

    stop: str
    start: str


@resource(
    ResourceType(
        "VmCheckpoints",
        key=("vm",),
        sets={"kind": one_of("disabled", "production", "production-only", "standard"), "automatic": FLAG},
        requires="HyperVRole",
        rests=DEVICES,
    )
)
class VmCheckpoints(State):
    """kind: disabled, production, production-only or standard; automatic: one at each start."""

    kind: str
    automatic: bool


@resource(
    ResourceType("VmMemory", key=("vm",), sets={"dynamic": FLAG}, requires="HyperVRole", needs=vm_off, rests=DEVICES)
)
class VmMemory(State):
    """Memory of a VM in bytes. Only the mode is changed here: an assigned device needs all of `startup` pinned."""

    dynamic: bool
    startup: Bytes
    minimum: Bytes
    maximum: Bytes


def _power_risks(change: Change) -> Iterable[str]:
    return ("vm-stop",) if change.before["state"] == RUNNING else ()


def _power_may_need(change: Change) -> Iterable[str]:
    return ("vm-turn-off",) if change.before["state"] == RUNNING else ()


@resource(
    ResourceType(
        "VmPower",
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
