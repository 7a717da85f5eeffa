"""The `storage` section of an autoinstall file: for a partition beside Windows, or for whole disks.

Of action lists alone, never `layout`: each form of that takes a disk by its size or leaves out partitions, which the
installer then deletes. Every size and offset is in bytes. No disk in it can match one of a machine before the guard has
compared that machine and put the paths of its disks in.
"""

from collections.abc import Sequence
from typing import Any

from winhost.autoinstall.installer_guard import UNRESOLVED
from winhost.autoinstall.manifest import ESP_TYPE, LINUX_TYPE, DiskManifest, PartitionRecord, PartitionRole
from winhost.core.dataclass import dataclass
from winhost.model.errors import RefusedError
from winhost.model.units import Bytes, GiB, MiB, size

Action = dict[str, Any]

_ESP: Bytes = GiB
_BOOT: Bytes = 2 * GiB
_END: Bytes = MiB  # the other copy of the table
_EXTENT: Bytes = 4 * MiB
_SMALLEST: Bytes = 16 * GiB
_RAID_END: Bytes = 128 * MiB + MiB  # what mdadm keeps for itself at most
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


def beside_windows(disk: DiskManifest) -> Action:
    """All partitions are listed and preserved; the target alone gets a file system. Raises ValueError."""
    esp, target = disk.one(PartitionRole.ESP), disk.one(PartitionRole.TARGET)
    config: list[Action] = [_disk("disk-0", preserve=True)]
    for number, each in enumerate(disk.partitions, 1):
        config.append(_preserved(each, number))
    config += _file_system(_id(esp), "vfat", "/boot/efi", preserve=True)
    config += _file_system(_id(target), "ext4", "/")
    return _section(config)


def _id(partition: PartitionRecord) -> str:
    return f"partition-{partition.guid}"


def _preserved(partition: PartitionRecord, number: int) -> Action:
    """Without partition_type the installer would make each of them one of Linux."""
    action = {
        "type": "partition",
        "id": _id(partition),
        "device": "disk-0",
        "number": number,  # until the guard has read the table
        "offset": partition.offset,
        "size": partition.size,
        "partition_type": partition.type,
        "preserve": True,
    }
    if partition.role is PartitionRole.ESP:
        action |= {"flag": "boot", "grub_device": True}
    elif partition.role is PartitionRole.MSR:
        action |= {"flag": "msftres"}
    elif partition.role is PartitionRole.TARGET:
        action |= {"wipe": "superblock"}
    return action


def whole_disks(disks: Sequence[DiskChoice], scheme: Scheme) -> Action:
    """Everything on these disks goes. Raises RefusedError (DisksUnusable)."""
    _check_scheme(disks, scheme)
    config: list[Action] = []
    rests: list[tuple[str, Bytes]] = []
    smallest = min(disk.size for disk in disks)
    for disk in disks:
        config.append(_disk(disk.id, preserve=False))
        config.append(_new(f"{disk.id}-esp", disk.id, 1, MiB, _ESP, ESP_TYPE, flag="boot", grub_device=True))
        rest = (smallest - MiB - _ESP - _END) // MiB * MiB
        config.append(_new(f"{disk.id}-rest", disk.id, 2, MiB + _ESP, rest, LINUX_TYPE))
        rests.append((f"{disk.id}-rest", rest))
    config += _file_system(f"{disks[0].id}-esp", "vfat", "/boot/efi")
    config += [_only_format(f"{disk.id}-esp", "vfat") for disk in disks[1:]]
    device, room = rests[0]
    if scheme.raid is not None:
        config.append(_raid([name for name, _ in rests], scheme.raid))
        device, room = "md-0", _capacity(scheme.raid, len(disks), room)
    config += _volumes(device, room) if scheme.lvm else _file_system(device, "ext4", "/")
    return _section(config)


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


def _capacity(level: int, count: int, member: Bytes) -> Bytes:
    """How much an array has at least: mdadm keeps some of each member for itself."""
    members = {0: count, 1: 1, 5: count - 1, 6: count - 2, 10: count // 2}[level]
    return members * (member - _RAID_END)


def _disk(name: str, *, preserve: bool) -> Action:
    action: Action = {"type": "disk", "id": name, "serial": UNRESOLVED, "ptable": "gpt", "preserve": preserve}
    return action if preserve else {**action, "wipe": "superblock-recursive"}


def _new(name: str, device: str, number: int, offset: Bytes, length: Bytes, kind: str, **more: Any) -> Action:
    place = {"device": device, "number": number, "offset": offset, "size": length}
    return {"type": "partition", "id": name, **place, "partition_type": kind, "wipe": "superblock", **more}


def _raid(members: list[str], level: int) -> Action:
    return {"type": "raid", "id": "md-0", "name": "md0", "raidlevel": level, "devices": members, "spare_devices": []}


def _volumes(device: str, room: Bytes) -> list[Action]:
    """/boot is a volume of its own, so that root can grow or be replaced without it."""
    root = (room - _BOOT - 2 * _EXTENT) // _EXTENT * _EXTENT
    group = {"type": "lvm_volgroup", "id": "vg-0", "name": "ubuntu-vg", "devices": [device]}
    volumes = [
        {"type": "lvm_partition", "id": f"lv-{name}", "name": name, "volgroup": "vg-0", "size": length}
        for name, length in (("boot", _BOOT), ("root", root))
    ]
    return [group, *volumes, *_file_system("lv-boot", "ext4", "/boot"), *_file_system("lv-root", "ext4", "/")]


def _only_format(volume: str, kind: str, *, preserve: bool = False) -> Action:
    action: Action = {"type": "format", "id": f"format-{volume}", "volume": volume, "fstype": kind}
    return {**action, "preserve": True} if preserve else action


def _file_system(volume: str, kind: str, path: str, *, preserve: bool = False) -> list[Action]:
    mount = {"type": "mount", "id": f"mount-{volume}", "device": f"format-{volume}", "path": path}
    return [_only_format(volume, kind, preserve=preserve), mount]


def _section(config: list[Action]) -> Action:
    """Without this `grub`, curtin takes other loaders' entries for duplicates; swap would be a file of some GiB."""
    return {
        "swap": {"size": 0},
        "grub": {"reorder_uefi": False, "remove_duplicate_entries": False},
        "config": config,
    }
