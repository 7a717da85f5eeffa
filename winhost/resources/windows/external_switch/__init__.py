"""External switches."""

from winhost.core.rules import Condition, DependentRule, KeepIf, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import CUTS_THE_WIRE
from winhost.resources.values import GUID, or_nothing, text

NONE, SETTLED = "none", "settled"


@resource(
    ResourceType(
        "ExternalSwitch",
        title="external switches",
        order=130,
        key=("name",),
        sets={"adapter": or_nothing(text(GUID, "the interface GUID of an adapter"))},
        requires="HyperVRole",
        after=("NetworkAdapter",),
        absent={"adapter": None, "management_os": False, "vms": 0, "phase": NONE, "detail": None},
        asks=("network",),
        risks=CUTS_THE_WIRE,
        dependents=(DependentRule("WslVm", at=("mode", "bridged")),),
        # Only the host's record of what winhost made there gives the right to remove it.
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (Condition("adapter", none_of=(None,)), Condition("phase", one_of=(NONE,))),
                    "this switch is not the one that winhost made",
                ),
                KeepIf((Condition("vms", none_of=(0,)),), "{vms} VM adapter(s) are connected to it"),
            )
        ),
    )
)
class ExternalSwitch(State):
    """An external switch by its name, which is what WSL knows it by.

    adapter: whose it is for good: null before the switch is settled, and the old one until its removal is. vms:
    adapters of VMs on it. phase: none (not winhost's), pending (at work), awaiting (done, and undone again unless the
    controller comes back), settled, undone (as before: detail says why) or failed (neither: detail says what is left).

    Making and removing cut the wire, so the host does either by itself: `set` leaves a record and a scheduled task,
    which keeps the adapter's addresses, makes the switch, puts back what got lost and then waits for a second call.
    That the controller can be reached is proved by nothing but its coming back, so the first `set` never ends well:
    where the wire held, it answers `Winhost.ComeBack`, which counts as a lost answer. Either way the engine opens a new
    session, reads, finds `adapter` not yet as wanted, and asks for the same again: that is the commit. Who does not
    come back within `how.within` seconds, or lets the host restart meanwhile, finds it as it was. An undone attempt is
    reported to the next request for the same; a request after that tries again.

    What only a real host shows: that Remove-VMSwitch gives static addresses back by itself is not relied on; DHCP may
    give another address than before (the switch has the adapter's MAC address, so most servers do not); static routes
    of an adapter that uses DHCP are not kept.
    """

    adapter: str | None
    management_os: bool
    vms: int
    phase: str
    detail: str | None
