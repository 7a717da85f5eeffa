"""The Hyper-V role."""

from winhost.core.rules import Condition, ConsentRule, DependentRule, KeepIf, UndoRule, UnknownIf
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.values import one_of
from winhost.resources.windows.assignable_device import DISABLED, ENABLED

INSTALLED = "installed"
PENDING = "install-pending"
UNINSTALLING = "uninstall-pending"


@resource(
    ResourceType(
        "HyperVRole",
        title="the Hyper-V role",
        order=80,
        sets={"role": one_of(INSTALLED, "available"), "tools": one_of(INSTALLED, "available")},
        restarts=True,
        asks=("restart", "vm-stop"),
        risks=(
            ConsentRule("restart", (Condition("role", of="desired"),)),
            ConsentRule(
                "vm-stop", (Condition("role", of="desired"), Condition("role", of="before", one_of=(INSTALLED,)))
            ),
        ),
        dependents=(
            DependentRule("AssignableDevice", unless=("assignment", (ENABLED, DISABLED))),
            DependentRule("ExternalSwitch", unless=("adapter", (None,)), since=()),
            DependentRule("VmMmio", since=("low", "high", "cache")),
            DependentRule("VmActions", since=("stop", "start")),
            DependentRule("VmCheckpoints", since=("kind", "automatic")),
            DependentRule("VmMemory", since=("dynamic",)),
        ),
        undo=UndoRule(
            # Without its tools nobody can tell what rests on the role.
            unknown_if=(
                UnknownIf(
                    (
                        Condition("role", one_of=(INSTALLED,)),
                        Condition("role", of="before", none_of=(INSTALLED,)),
                        Condition("tools", none_of=(INSTALLED,)),
                    ),
                    "what rests on the role",
                    "its PowerShell module",
                ),
            ),
            # VM definitions that were there when the role came stay on disk; one made since is somebody's work.
            keep_if=(KeepIf((Condition("vms", gained=True),), "{vms} VM(s) made since need it"),),
            # Between two restarts, either way, it is nobody else's state.
            transitional_states={"role": (PENDING, UNINSTALLING)},
        ),
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
