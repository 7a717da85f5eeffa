"""VMs of WSL."""

from collections.abc import Mapping
from types import MappingProxyType

from winhost.core.answers import Json
from winhost.core.rules import Condition, ConsentRule, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import DISTROS_OF, ENDS_DISTROS
from winhost.resources.values import SHA256_OR_NOTHING, or_nothing, text

_MODE = or_nothing(text("bridged|mirrored|nat", "bridged, mirrored or nat"))
NO_VM: Mapping[str, Json] = MappingProxyType({"running": False, "config": None, "mode": None})


@resource(
    ResourceType(
        "WslVm",
        title="VMs of WSL",
        order=320,
        key=("account",),
        sets={"config": SHA256_OR_NOTHING, "mode": _MODE},
        after=("WslConfig", "ExternalSwitch"),
        requires="AccountTasks",
        absent=NO_VM,
        asks=("vm-stop",),
        risks=ENDS_DISTROS,
        may_need=(ConsentRule("vm-stop"),),  # one that winhost did not start may run all the same,
        within=DISTROS_OF,
        # The file goes back by itself, later: a VM cannot be made with what it does not say yet.
        undo=UndoRule(
            gone_if=((Condition("running", one_of=(False,)),),),
            never="WSL reads the .wslconfig that was put back at its next start",
        ),
    )
)
class WslVm(State):
    """The VM in which all distros of an account run; running: one of them does.

    config: SHA-256 of the text of .wslconfig (as UTF-8) that it was made with: the file's text, or its text before
    winhost changed it. A file that somebody else wrote since the VM's kernel started, or a VM that winhost never saw
    start, has null. mode: of its network, as `wslinfo` reports it, which is `nat` where mirrored could not be
    had, and `none` where a bridge could not, or has lost its link since, as when its switch was made again under it
    (that the link shows that: inferred). It gets another one only by starting again. Of a VM that does not run, both
    are what winhost last ended it for.
    """

    running: bool
    config: str | None
    mode: str | None
