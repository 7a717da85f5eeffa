"""The Windows feature that WSL runs on."""

from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.resources.base import ResourceType, Rests, State, Undo, by_hand, resource, undo_property_by_property
from winhost.resources.shared import DISTROS, restart
from winhost.resources.values import one_of
from winhost.resources.windows.hyperv_role.resource import INSTALLED, PENDING, UNINSTALLING


@by_hand("feature")
def undo_feature(before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]) -> Undo:
    """Between two restarts it is nobody else's state."""
    return dict(before) if now["feature"] in (PENDING, UNINSTALLING) else undo_property_by_property(before, after, now)


@resource(
    ResourceType(
        "VirtualMachinePlatform",
        title="the Windows feature that WSL runs on",
        order=90,
        sets={"feature": one_of(INSTALLED, "available")},
        restarts=True,
        asks=("restart",),
        risks=restart,
        rests=(Rests("Wsl", unless=("present", (False,))), DISTROS),
        undo=undo_feature,
    )
)
class VirtualMachinePlatform(State):
    """The optional feature in which distros of WSL 2 run; with it on, a hypervisor runs after the next restart.

    feature: available, installed, install-pending, uninstall-pending (both pending: until the restart) or removed
    (this Windows does not have it, or not its files).
    """

    feature: str
