"""A PCI function on the ladder from the host to a VM."""

from collections.abc import Iterable, Mapping

from winhost.core.answers import Json
from winhost.core.steps import Change, Need
from winhost.resources.base import Keep, ResourceType, State, Undo, by_hand, resource
from winhost.resources.values import text
from winhost.resources.windows.vm_power.resource import OFF

ENABLED = "host-enabled"
DISABLED = "host-disabled"
DISMOUNTED = "dismounted"
ASSIGNED = "assigned:"
GUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def assigned(vm: str) -> str:
    """The top of the ladder: given to the VM with this GUID."""
    return ASSIGNED + vm


def owner(place: str) -> str | None:
    """The GUID of the VM that has it, if one does."""
    return place.removeprefix(ASSIGNED) if place.startswith(ASSIGNED) else None


@by_hand("owners-off")
def _owners_off(change: Change) -> Iterable[Need]:
    owners = {owner(change.before["place"]), owner(change.desired["place"])} - {None}
    return tuple(Need("VmPower", {"vm": str(vm)}, {"state": OFF}) for vm in sorted(map(str, owners)))


def _leaves_host(change: Change) -> bool:
    return change.before["place"] in (ENABLED, DISABLED) and change.desired["place"] not in (ENABLED, DISABLED)


def _may_need(change: Change) -> Iterable[str]:
    return ("force-dismount",) if _leaves_host(change) else ()


@by_hand("place")
def _undo(before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]) -> Undo:
    """Any lower rung is still our doing; another VM's card is not ours to take."""
    foreign = owner(now["place"])
    if foreign and now["place"] not in (before["place"], after["place"]):
        return Keep(f"VM {foreign} has it now")
    return {} if now["place"] == before["place"] else dict(before)


@resource(
    ResourceType(
        "AssignableDevice",
        title="devices that can be assigned",
        order=170,
        key=("location", "device"),
        sets={
            "place": text(
                f"{ENABLED}|{DISABLED}|{DISMOUNTED}|{ASSIGNED}{GUID}",
                f"{ENABLED}, {DISABLED}, {DISMOUNTED} or {ASSIGNED}GUID",
            )
        },
        after=("HyperVRole", "VmMmio", "VmActions", "VmCheckpoints", "VmMemory"),
        requires="HyperVRole",
        asks=("force-dismount",),
        needs=_owners_off,
        may_need=_may_need,
        undo=_undo,
    )
)
class AssignableDevice(State):
    """place: host-enabled, host-disabled, dismounted or assigned:<VM GUID>. `set` walks the ladder both ways."""

    place: str
