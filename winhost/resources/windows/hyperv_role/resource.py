"""The Hyper-V role."""

from collections.abc import Mapping

from winhost.core.answers import Json, MissingFact, Unavailable
from winhost.core.steps import Change
from winhost.resources.base import Keep, ResourceType, Rests, State, Undo, by_hand, resource, undo_property_by_property
from winhost.resources.values import one_of
from winhost.resources.windows.assignable_device.resource import DISABLED, ENABLED

INSTALLED = "installed"
PENDING = "install-pending"
UNINSTALLING = "uninstall-pending"


@by_hand("role")
def _undo_role(before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]) -> Undo:
    """VM definitions that were there when the role came stay on disk; one made since is somebody's work.

    Raises MissingFact: without its tools nobody can tell what rests on the role.
    """
    if now["role"] == INSTALLED != before.get("role", INSTALLED) and now["tools"] != INSTALLED:
        raise MissingFact("what rests on the role", Unavailable("its PowerShell module"))
    made_since = now["vms"] - after["vms"]
    if made_since > 0:
        return Keep(f"{made_since} VM(s) made since need it")
    if now["role"] in (PENDING, UNINSTALLING):
        return dict(before)  # between two restarts, either way: nobody else's state
    return undo_property_by_property(before, after, now)


@by_hand("restarts-for-role")
def _role_risks(change: Change) -> tuple[str, ...]:
    if "role" not in change.desired:
        return ()
    return ("restart", "vm-stop") if change.before["role"] == INSTALLED else ("restart",)


@resource(
    ResourceType(
        "HyperVRole",
        title="the Hyper-V role",
        order=80,
        sets={"role": one_of(INSTALLED, "available"), "tools": one_of(INSTALLED, "available")},
        restarts=True,
        asks=("restart", "vm-stop"),
        risks=_role_risks,
        rests=(
            Rests("AssignableDevice", unless=("place", (ENABLED, DISABLED))),
            Rests("ExternalSwitch", unless=("adapter", (None,)), since=()),
            Rests("VmMmio", since=("low", "high", "cache")),
            Rests("VmActions", since=("stop", "start")),
            Rests("VmCheckpoints", since=("kind", "automatic")),
            Rests("VmMemory", since=("dynamic",)),
        ),
        undo=_undo_role,
    )
)
class HyperVRole(State):
    """The Windows feature and its PowerShell module.

    role, tools: available, installed, install-pending, uninstall-pending (both pending: until the restart) or removed
    (its files are not on this Windows). vms: how many VMs stand on it, 0 while the role or its tools are missing.
    """

    role: str
    tools: str
    vms: int
