"""The Windows Subsystem for Linux as a package."""

from typing import Annotated

from winhost.core.rules import Condition, KeepIf, UndoRule
from winhost.resources.base import (
    VERSION,
    ResourceType,
    State,
    resource,
)
from winhost.resources.shared import DISTROS, RESTART
from winhost.resources.values import text

NO_DOWNGRADE = "winhost never downgrades WSL"
_WAS_THERE = Condition("version", of="before", none_of=(None,))
_ENDS = "{version} does not come back; whatever runs in a distro, of any account, ends with the upgrade"


@resource(
    ResourceType(
        "Wsl",
        title="WSL",
        order=270,
        sets={
            "version": text(r"[0-9]{1,5}(\.[0-9]{1,5}){2,3}", "a version, as 2.7.14.0"),
            "package": text("[0-9a-f]{64}", "the SHA-256 of a staged MSI"),
        },
        after=("VirtualMachinePlatform", "StagedFile"),
        asks=("restart",),
        risks=RESTART,
        dependents=(DISTROS,),
        irreversible=(KeepIf((_WAS_THERE,), f"{NO_DOWNGRADE}: {_ENDS}"),),
        # What was not there goes; a version that was there does not come back.
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (_WAS_THERE, Condition("version", differs_from=("before",))),
                    NO_DOWNGRADE,
                ),
            )
        ),
    )
)
class Wsl(State):
    """The Windows Subsystem for Linux as a package, for all accounts.

    present: the service of one is there; version: of the package, null where only the WSL in the box or none is there;
    package: SHA-256 of the MSI by which winhost installed this version, null where somebody else did or it changed
    since. Installed is only what Microsoft has signed, and never an older version. An MSI that finds files in use asks
    for a restart; how often that of WSL does nobody documents.
    """

    present: bool
    version: Annotated[str, VERSION] | None
    package: str | None
