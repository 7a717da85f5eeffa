"""The Windows feature that WSL runs on."""

from winhost.core.rules import DependentRule, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import DISTROS, RESTART
from winhost.resources.values import one_of
from winhost.resources.windows.hyperv_role import INSTALLED, PENDING, UNINSTALLING


@resource(
    ResourceType(
        "VirtualMachinePlatform",
        title="the Windows feature that WSL runs on",
        order=90,
        sets={"feature": one_of(INSTALLED, "available")},
        restarts=True,
        asks=("restart",),
        risks=RESTART,
        dependents=(DependentRule("Wsl", unless=("present", (False,))), DISTROS),
        # Between two restarts it is nobody else's state.
        undo=UndoRule(transitional_states={"feature": (PENDING, UNINSTALLING)}),
    )
)
class VirtualMachinePlatform(State):
    """The optional feature in which distros of WSL 2 run; with it on, a hypervisor runs after the next restart.

    feature: available, installed, install-pending, uninstall-pending (both pending: until the restart) or removed
    (this Windows does not have it, or not its files).
    """

    feature: str
