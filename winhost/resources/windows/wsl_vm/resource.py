"""VMs of WSL."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from winhost.core.answers import Json
from winhost.core.steps import Change
from winhost.resources.base import Keep, ResourceType, State, Undo, by_hand, resource
from winhost.resources.shared import DISTROS_OF, ends_distros
from winhost.resources.values import SHA256_OR_NOTHING, or_nothing, text

_MODE = or_nothing(text("bridged|mirrored|nat", "bridged, mirrored or nat"))
NO_VM: Mapping[str, Json] = MappingProxyType({"running": False, "config": None, "mode": None})


@by_hand("vm")
def undo_vm(before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]) -> Undo:
    """The file goes back by itself, later: a VM cannot be made with what it does not say yet."""
    return Keep("WSL reads the .wslconfig that was put back at its next start") if now["running"] else {}


def may_end_distros(change: Change) -> Iterable[str]:
    """One that winhost did not start may run all the same."""
    return ("vm-stop",)


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
        risks=ends_distros,
        may_need=may_end_distros,
        within=DISTROS_OF,
        undo=undo_vm,
    )
)
class WslVm(State):
    """The VM in which all distros of an account run; running: one of them does.

    config: SHA-256 of the text of .wslconfig (as UTF-8) that it was made with: the file's text, or its text before
    winhost changed it. A file that somebody else wrote since the VM's kernel started, or a VM that winhost never saw
    start, has null. mode: of its network, as `wslinfo` reports it, which is `nat` where mirrored could not be
    had, and `none` where a bridge could not, or has lost its link since, as when its switch was made anew under it
    (that the link shows that: inferred). It gets another one only by starting again. Of a VM that does not run, both
    are what winhost last ended it for.
    """

    running: bool
    config: str | None
    mode: str | None
