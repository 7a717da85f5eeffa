"""The distro."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from winhost.core.answers import Json
from winhost.core.steps import Change
from winhost.resources.base import Keep, ResourceType, Rests, State, Undo, by_hand, resource, undo_property_by_property
from winhost.resources.shared import INSIDE
from winhost.resources.values import FLAG, SHA256_OR_NOTHING

NO_DISTRO: Mapping[str, Json] = MappingProxyType(
    {"installed": False, "running": False, "image": None, "folder": None, "others": 0}
)


@by_hand("ends-a-distro")
def distro_risks(change: Change) -> Iterable[str]:
    """What runs in it ends with it."""
    ends = change.desired.get("installed") is False or change.desired.get("running") is False
    return ("vm-stop",) if ends and change.before.get("running") is not False else ()


def distro_may_need(change: Change) -> Iterable[str]:
    """With this consent it goes without being exported first."""
    return ("data",) if change.desired.get("installed") is False else ()


@by_hand("distro")
def undo_distro(before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]) -> Undo:
    """A distro goes only if it is the one that was imported; then it goes as a whole."""
    if before.get("installed") is not False:
        return undo_property_by_property(before, after, now)
    if not now["installed"]:
        return {}
    if now["image"] is None or now["image"] != after["image"]:
        return Keep("it is not the distro that winhost made any more")
    return {name: NO_DISTRO[name] for name in ("installed", "image", "running") if now[name] != NO_DISTRO[name]}


@resource(
    ResourceType(
        "WslDistro",
        title="the distro",
        order=330,
        key=("account", "distro"),
        sets={"installed": FLAG, "image": SHA256_OR_NOTHING, "running": FLAG},
        after=("Wsl", "StagedFile", "WslConfig", "WslVm"),
        requires="AccountTasks",
        absent=NO_DISTRO,
        asks=("vm-stop", "data"),
        risks=distro_risks,
        may_need=distro_may_need,
        rests=(
            Rests("WslConf", on=("account", "distro"), since=("conf", "network", "resolver")),
            Rests("WslAccess", on=("account", "distro"), since=("port", "listen", "allowed", "authorized")),
            *INSIDE,
        ),
        undo=undo_distro,
    )
)
class WslDistro(State):
    """A distro of an account that can run jobs; nobody else sees it.

    image: SHA-256 of the staged file (a .wsl or a tar) that winhost made it of, null for one that somebody else made:
    such a one is never overwritten, started, stopped or taken away. folder: where its disk is; others: how many the
    account has that winhost did not make.
    Taken away it is exported first, to %ProgramData%\\winhost\\exports, unless the consent `data` is given.
    Running means held: by the task that keeps it alive, or by a .wslconfig without an idle timeout.
    """

    installed: bool
    running: bool
    image: str | None
    folder: str | None
    others: int
