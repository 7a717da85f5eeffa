"""Make the order for the guard in the installer, and the installer's storage section from the same data."""

from collections.abc import Mapping, Sequence
from typing import Any

from winhost.autoinstall.installer_storage import (
    is_blank_serial,
    normalize_name,
    section_beside_windows,
    section_of_whole_disks,
)
from winhost.autoinstall.manifest import DiskManifest, MachineIdentity, PartitionRecord, PartitionRole
from winhost.core.dataclass import dataclass
from winhost.model.errors import RefusedError
from winhost.model.units import Bytes, GiB, gib, size

Action = dict[str, Any]

SCHEMA = "winhost.guard-order/1"
_MIN_DISK: Bytes = 16 * GiB
_DISKS_OF_LEVEL = {0: 2, 1: 2, 5: 3, 6: 4, 10: 4}


@dataclass(frozen=True)
class DiskChoice:
    """A disk that Ubuntu gets whole. guid: of its table; a disk without a table is named by its serial number."""

    id: str
    size: Bytes
    guid: str | None = None
    serial: str | None = None


@dataclass(frozen=True)
class Scheme:
    """The layout of whole disks. raid: a level for all of them together; lvm: a volume group for the root."""

    raid: int | None = None
    lvm: bool = False


def partition_order(each: PartitionRecord) -> dict[str, Any]:
    """Return a partition in the form of the guard's order."""
    record = {"guid": each.guid, "offset": each.offset, "size": each.size, "type": each.type, "role": str(each.role)}
    return record | ({"filesystem": each.filesystem} if each.filesystem else {})


def storage_beside_windows(disk: DiskManifest) -> Action:
    """Make the storage section that preserves all partitions, and makes a file system only on the target. Raises
    ValueError.
    """
    disk.with_role(PartitionRole.ESP), disk.with_role(PartitionRole.TARGET)
    return section_beside_windows([partition_order(each) for each in disk.partitions])


def whole_disks(disks: Sequence[DiskChoice], scheme: Scheme) -> Action:
    """Make the storage section that replaces everything on these disks. Raises RefusedError (DisksUnusable)."""
    if scheme.raid is None and len(disks) != 1:
        raise _disks_error(f"{len(disks)} disks are given, and no RAID level for them")
    min_count = _DISKS_OF_LEVEL.get(scheme.raid, 0) if scheme.raid is not None else 1
    if len(disks) < min_count or not min_count:
        levels = ", ".join(f"{level} from {count} disks on" for level, count in _DISKS_OF_LEVEL.items())
        raise _disks_error(f"RAID {scheme.raid} cannot be made of {len(disks)} disks; there is {levels}")
    small = min(disks, key=lambda disk: disk.size)
    if small.size < _MIN_DISK:
        raise _disks_error(f"{small.id} has {size(small.size)}, and Ubuntu needs {size(_MIN_DISK)} on each disk")
    return section_of_whole_disks([(each.id, each.size) for each in disks], scheme.raid, lvm=scheme.lvm)


def _disks_error(what: str) -> RefusedError:
    return RefusedError("DisksUnusable", what=what, hint="Name other disks, or a RAID level that fits their number")


@dataclass(frozen=True)
class WholeDisk:
    """A disk that Ubuntu gets whole, with its present partitions. heed: warnings for the person who consents to its
    loss; wipe: the GUID or serial number that this person typed, or wrote into a file, as consent.
    """

    choice: DiskChoice
    sector: Bytes
    model: str
    partitions: tuple[PartitionRecord, ...] = ()
    heed: tuple[str, ...] = ()
    wipe: str | None = None

    def __post_init__(self) -> None:
        if is_blank_serial(self.choice.guid or self.choice.serial or ""):
            raise ValueError(f"{self.choice.id} has neither a GUID nor a serial number: nothing names it")
        if not normalize_name(self.model):
            raise ValueError(f"{self.choice.id} has no model, which the installer compares")
        if self.wipe is not None and self.wipe != self.name:
            raise ValueError(f"the consent names {self.wipe}, and {self.choice.id} is {self.name}")

    @property
    def name(self) -> str:
        """The GUID of its table, else its serial number."""
        return self.choice.guid or str(self.choice.serial)

    @property
    def line(self) -> str:
        """The disk as shown to the person who consents to its loss."""
        return f"{self.model}, {gib(self.choice.size)}, {self.name}"


def order_beside(disk: DiskManifest, report: str | None = None, windows_esp: str | None = None) -> dict[str, Any]:
    """Make the order for an installation into a partition that Windows made. report: the URL to which the guard reports
    its result; windows_esp: the EFI system partition of a Windows on another disk.
    """
    requested = {
        "id": "disk-0",
        "use": "beside",
        "guid": disk.guid,
        "size": disk.size,
        "sector": disk.sector,
        "label": disk.label,
        "partitions": [partition_order(each) for each in disk.partitions],
    }
    esp = disk.with_role(PartitionRole.ESP).guid
    return _order(disk.machine, [requested], report) | {"windows_esp": windows_esp or esp, "linux_esp": esp}


def order_whole(
    machine: MachineIdentity, disks: Sequence[WholeDisk], scheme: Scheme, report: str | None = None
) -> dict[str, Any]:
    """Make the order for an installation on whole disks."""
    requested = [
        {
            "id": disk.choice.id,
            "use": "whole",
            **({"guid": disk.choice.guid} if disk.choice.guid else {"serial": disk.choice.serial}),
            **({"wipe": disk.wipe} if disk.wipe else {}),
            "model": disk.model,
            "size": disk.choice.size,
            "sector": disk.sector,
            "partitions": [partition_order(each) for each in disk.partitions],
        }
        for disk in disks
    ]
    return _order(machine, requested, report) | {"raid": scheme.raid, "lvm": scheme.lvm}


def _order(machine: MachineIdentity, disks: Sequence[Mapping[str, Any]], report: str | None) -> dict[str, Any]:
    who = {"uuid": machine.uuid} | ({"serial": machine.serial} if machine.serial else {})
    order = {"schema": SCHEMA, "machine": who, "disks": list(disks)}
    return order | ({"report": report} if report else {})
