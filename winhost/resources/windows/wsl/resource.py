"""The Windows Subsystem for Linux as a package."""

from collections.abc import Mapping
from typing import Annotated

from winhost.core.answers import Json
from winhost.core.steps import Change
from winhost.resources.base import (
    VERSION,
    Keep,
    ResourceType,
    State,
    Undo,
    by_hand,
    resource,
    undo_property_by_property,
)
from winhost.resources.shared import DISTROS, restart
from winhost.resources.values import text

NO_DOWNGRADE = "winhost never downgrades WSL"


def _irreversible(change: Change) -> str | None:
    found = change.before.get("version")
    if found is None:
        return None
    return (
        f"{NO_DOWNGRADE}: {found} does not come back; whatever runs in a distro, of any account, ends with the upgrade"
    )


@by_hand("wsl")
def undo_wsl(before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]) -> Undo:
    """What was not there goes; a version that was there does not come back."""
    if before.get("version") is not None and now["version"] != before["version"]:
        return Keep(NO_DOWNGRADE)
    return undo_property_by_property(before, after, now)


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
        risks=restart,
        rests=(DISTROS,),
        irreversible=_irreversible,
        undo=undo_wsl,
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
