"""Disks for data, formatted where they are empty."""

from winhost.core.rules import ConsentRule, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import UUID, one_of, text

_STAYS = "winhost never wipes a disk; its file system and what is on it stay"


@resource(
    ResourceType(
        "DataDisk",
        title="disks for data in Linux",
        order=27,
        key=("serial", "size"),
        sets={
            "filesystem": one_of("ext4", "xfs"),
            "label": text(r"[A-Za-z0-9_-]{1,12}", "a label: up to 12 letters, digits, _ and -"),
            "uuid": UUID,
        },
        after=("AptPackages", "DebianPackage"),
        requires=ACCESS,
        within=DISTROS,
        asks=("data",),
        risks=(ConsentRule("data"),),
        lasts=lambda change: 1800,
        irreversible=lambda change: f"disk {change.key['serial']} of {change.key['size']} bytes: {_STAYS}",
        undo=UndoRule(never=_STAYS),
    )
)
class DataDisk(State):
    """A whole disk, by its serial number and its size in bytes: what has no serial number is none.

    disk: its name now, as `nvme1n1`; holds: what is on it; it is formatted only where that is nothing, all of it read
    again right before. filesystem, label, uuid: as they are, null where there is no file system.
    """

    disk: str
    holds: tuple[str, ...]
    filesystem: str | None
    label: str | None
    uuid: str | None
