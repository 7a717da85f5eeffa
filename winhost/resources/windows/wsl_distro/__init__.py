"""The distro."""

from collections.abc import Mapping
from types import MappingProxyType

from winhost.core.answers import Json
from winhost.core.rules import Condition, ConsentRule, DependentRule, KeepIf, UndoRule
from winhost.model.units import Bytes
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import INSIDE
from winhost.resources.values import FLAG, SHA256_OR_NOTHING

NO_DISTRO: Mapping[str, Json] = MappingProxyType(
    {"installed": False, "running": False, "image": None, "folder": None, "file_size": None, "others": 0}
)
_STOPPED = Condition("running", of="before", one_of=(False,))
_IMPORTED = Condition("installed", of="before", one_of=(False,))


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
        # What runs in it ends with it.
        risks=tuple(
            ConsentRule("vm-stop", (Condition(name, of="desired", one_of=(False,)),), unless=(_STOPPED,))
            for name in ("installed", "running")
        ),
        # With this consent it goes without being exported first.
        may_need=(ConsentRule("data", (Condition("installed", of="desired", one_of=(False,)),)),),
        dependents=(
            DependentRule("WslConf", on=("account", "distro"), since=("conf", "network", "resolver")),
            DependentRule("WslAccess", on=("account", "distro"), since=("port", "listen", "allowed", "authorized")),
            *INSIDE,
        ),
        # A distro goes only if it is the one that was imported; then it goes as a whole.
        undo=UndoRule(
            gone_if=((_IMPORTED, Condition("installed", one_of=(False,))),),
            keep_if=tuple(
                KeepIf((_IMPORTED, other), "it is not the distro that winhost made any more")
                for other in (Condition("image", one_of=(None,)), Condition("image", differs_from=("after",)))
            ),
            remove_if_created={name: NO_DISTRO[name] for name in ("installed", "image", "running")},
        ),
    )
)
class WslDistro(State):
    """A distro of an account that can run jobs; nobody else sees it.

    image: SHA-256 of the staged file (a .wsl or a tar) that winhost made it of, null for one that somebody else made:
    such a one is never overwritten, started, stopped or taken away. folder: where its disk is; file_size: bytes of the
    file ext4.vhdx there, which has the distro and all that is in it; others: how many the account has that winhost did
    not make.
    Taken away it is exported first, to %ProgramData%\\winhost\\exports, unless the consent `data` is given.
    Running means held: by the task that keeps it alive, or by a .wslconfig without an idle timeout.
    """

    installed: bool
    running: bool
    image: str | None
    folder: str | None
    file_size: Bytes | None
    others: int
