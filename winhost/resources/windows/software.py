"""What is installed: the Windows feature that WSL runs on, files that winhost brings, and WSL itself."""

from collections.abc import Iterable, Mapping
from typing import Annotated

from winhost.model.facts import Json
from winhost.resources.base import (
    VERSION,
    Attachment,
    Change,
    Keep,
    ResourceType,
    Rests,
    State,
    Undo,
    resource,
    undo_property_by_property,
)
from winhost.resources.values import FLAG, one_of, text
from winhost.resources.windows.hyperv import INSTALLED, PENDING, UNINSTALLING

NO_DOWNGRADE = "winhost never downgrades WSL"


def restart(change: Change) -> Iterable[str]:
    """It takes effect with a restart, or may come to ask for one when it is too late to ask anybody."""
    return ("restart",)


def undo_feature(before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]) -> Undo:
    """Between two restarts it is nobody else's state."""
    return dict(before) if now["feature"] in (PENDING, UNINSTALLING) else undo_property_by_property(before, after, now)


# Without the feature no VM of theirs starts, and without WSL nobody can take them back.
DISTROS = Rests("WslDistro", disks=True)


@resource(
    ResourceType(
        "VirtualMachinePlatform",
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


def from_beside(change: Change) -> Attachment | None:
    """./name is a file in the folder of the plan, on the computer that winhost runs on."""
    before, _, name = change.key["source"].partition("./")
    return Attachment(name, change.key["sha256"]) if not before and change.want.get("present") else None


def undo_staged(before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]) -> Undo:
    """What is there in part is nobody else's, and never put back."""
    found = {"present": before["present"] is True}
    return found if now["present"] is None else undo_property_by_property(found, after, now)


@resource(
    ResourceType(
        "StagedFile",
        key=("sha256", "name", "source"),
        sets={"present": FLAG},
        absent={"present": False},
        rests=(Rests("Wsl", at=("package", "{sha256}")), Rests("WslDistro", at=("image", "{sha256}"))),
        sends=from_beside,
        undo=undo_staged,
    )
)
class StagedFile(State):
    """A file that winhost brings, in a folder of administrators: %ProgramData%\\winhost\\files\\<sha256>-<name>.

    source: an https address that the host can reach, the absolute path of a file on a drive of the host, or ./ and the
    name of a file that lies beside the plan; name: letters, digits, dot, dash and underscore. present: it is there with
    this SHA-256; with any other it is as good as absent, and replaced. null: a part of it was sent, and the rest is
    still to come.
    """

    present: bool | None


def _irreversible(change: Change) -> str | None:
    found = change.before.get("version")
    if found is None:
        return None
    return (
        f"{NO_DOWNGRADE}: {found} does not come back; whatever runs in a distro, of any account, ends with the upgrade"
    )


def undo_wsl(before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]) -> Undo:
    """What was not there goes; a version that was there does not come back."""
    if before.get("version") is not None and now["version"] != before["version"]:
        return Keep(NO_DOWNGRADE)
    return undo_property_by_property(before, after, now)


@resource(
    ResourceType(
        "Wsl",
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
