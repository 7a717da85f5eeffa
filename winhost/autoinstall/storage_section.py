"""The `storage` section of an autoinstall file: for a partition beside Windows, or for whole disks.

The guard makes the same section in the installer, by the same code, of its order.
"""

from collections.abc import Sequence
from typing import Any

from winhost.autoinstall.installer_storage import beside_section, whole_section
from winhost.autoinstall.manifest import DiskManifest, PartitionRecord, PartitionRole
from winhost.core.dataclass import dataclass
from winhost.model.errors import RefusedError
from winhost.model.units import Bytes, GiB, size

Action = dict[str, Any]

_SMALLEST: Bytes = 16 * GiB
_DISKS_OF_LEVEL = {0: 2, 1: 2, 5: 3, 6: 4, 10: 4}


@dataclass(frozen=True)
class DiskChoice:
    """A disk that Ubuntu gets whole. guid: None for one without a table, which its serial number names then."""

    id: str
    size: Bytes
    guid: str | None = None
    serial: str | None = None


@dataclass(frozen=True)
class Scheme:
    """What whole disks become. raid: a level for all of them together; lvm: a volume group for the root."""

    raid: int | None = None
    lvm: bool = False


def partition_order(each: PartitionRecord) -> dict[str, Any]:
    """A partition as the guard's order has it."""
    told = {"guid": each.guid, "offset": each.offset, "size": each.size, "type": each.type, "role": str(each.role)}
    return told | ({"filesystem": each.filesystem} if each.filesystem else {})


def beside_windows(disk: DiskManifest) -> Action:
    """All partitions are listed and preserved; the target alone gets a file system. Raises ValueError."""
    disk.one(PartitionRole.ESP), disk.one(PartitionRole.TARGET)
    return beside_section([partition_order(each) for each in disk.partitions])


def whole_disks(disks: Sequence[DiskChoice], scheme: Scheme) -> Action:
    """Everything on these disks goes. Raises RefusedError (DisksUnusable)."""
    _check_scheme(disks, scheme)
    return whole_section([(each.id, each.size) for each in disks], scheme.raid, lvm=scheme.lvm)


def _check_scheme(disks: Sequence[DiskChoice], scheme: Scheme) -> None:
    if scheme.raid is None and len(disks) != 1:
        raise _unusable(f"{len(disks)} disks are given, and no RAID level for them")
    fewest = _DISKS_OF_LEVEL.get(scheme.raid, 0) if scheme.raid is not None else 1
    if len(disks) < fewest or not fewest:
        levels = ", ".join(f"{level} from {count} disks on" for level, count in _DISKS_OF_LEVEL.items())
        raise _unusable(f"RAID {scheme.raid} cannot be made of {len(disks)} disks; there is {levels}")
    small = min(disks, key=lambda disk: disk.size)
    if small.size < _SMALLEST:
        raise _unusable(f"{small.id} has {size(small.size)}, and Ubuntu needs {size(_SMALLEST)} on each disk")


def _unusable(what: str) -> RefusedError:
    return RefusedError("DisksUnusable", what=what, hint="Name other disks, or a RAID level that fits their number")
