"""The storage section that follows from the guard's order, and the file that the installer will use.

Part of guard.py: it runs in the installer, and winhost makes the section of the installer's file by it. Of action lists
alone, never `layout`: each form of that takes a disk by its size or leaves out partitions, which the installer then
deletes. Every size and offset is in bytes. No disk in it matches one of a machine before the guard has compared that
machine and put the paths of its disks in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

UNRESOLVED = "WINHOST-UNRESOLVED"
# The installer is a snap, whose own paths and libraries are no business of the system's Python.
PYTHON = "env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin /usr/bin/python3 -I"
SECOND_RUN = "again"
FETCHING = f"{PYTHON} /cdrom/winhost/fetch.py"
ESP_TYPE, LINUX_TYPE = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b", "0fc63daf-8483-4772-8e79-3d69d8477de4"

_MIB = 1 << 20
_ESP, _BOOT, _EXTENT = 1024 * _MIB, 2048 * _MIB, 4 * _MIB
_TABLE = _MIB  # the other copy of the table, at the end of a disk
_RAID_RESERVE = 129 * _MIB  # what mdadm keeps of a member for itself at most
_FLAGS: dict[str, dict[str, Any]] = {
    "esp": {"flag": "boot", "grub_device": True},
    "msr": {"flag": "msftres"},
    "target": {"wipe": "superblock"},
}


class GuardStop(Exception):
    """Nothing may be written, for this reason: a code, and what was found."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(f"{code}: {words}")
        self.code = code


def plain(serial: str) -> str:
    """A serial number without what Windows, NVMe and SCSI put around it."""
    return (
        re.sub(r"^(eui|naa|nvme|uuid|t10)\.", "", serial.strip().lower().rstrip(".")).replace("_", "").replace(" ", "")
    )


def is_blank_serial(serial: str) -> bool:
    """Tell whether this is no serial number: disks without one report dashes, blanks or zeros."""
    return not plain(serial).strip("-.0")


def letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


# --- The section ------------------------------------------------------------------------------------------------------


def section_of(order: Mapping[str, Any]) -> dict[str, Any]:
    """Make the storage section for the disks of an order, which are either all shared with Windows or all
    Ubuntu's own.
    """
    disks = order["disks"]
    if [each["use"] for each in disks] == ["beside"]:
        return section_beside_windows(disks[0]["partitions"])
    if not disks or any(each["use"] != "whole" for each in disks):
        raise GuardStop("order", "the order names neither one disk beside Windows nor whole disks")
    return section_of_whole_disks([(each["id"], each["size"]) for each in disks], order["raid"], lvm=order["lvm"])


def section_beside_windows(partitions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All partitions are listed and preserved; the target alone gets a file system."""
    config = [_disk("disk-0", preserve=True)]
    by_role = {each["role"]: f"partition-{each['guid']}" for each in partitions}
    for number, each in enumerate(partitions, 1):
        listed: dict[str, Any] = {
            "type": "partition",
            "id": f"partition-{each['guid']}",
            "device": "disk-0",
            "number": number,  # until the guard has read the table
            "offset": each["offset"],
            "size": each["size"],
            "partition_type": each["type"],  # without it the installer would make each of them one of Linux
            "preserve": True,
        }
        config.append({**listed, **_FLAGS.get(each["role"], {})})
    config += _file_system(by_role["esp"], "vfat", "/boot/efi", preserve=True)
    return _section([*config, *_file_system(by_role["target"], "ext4", "/")])


def section_of_whole_disks(disks: Sequence[tuple[str, int]], raid: int | None, *, lvm: bool) -> dict[str, Any]:
    """Everything on these disks goes. disks: their ids and sizes; raid: a level for all of them together; lvm: a volume
    group for the root.
    """
    config: list[dict[str, Any]] = []
    room = (min(size for _, size in disks) - _MIB - _ESP - _TABLE) // _MIB * _MIB
    for name, _ in disks:
        config.append(_disk(name, preserve=False))
        esp = {"flag": "boot", "grub_device": True}
        config.append(_new(f"{name}-esp", name, 1, (_MIB, _ESP), ESP_TYPE) | esp)
        config.append(_new(f"{name}-rest", name, 2, (_MIB + _ESP, room), LINUX_TYPE))
    first, *others = [name for name, _ in disks]
    config += _file_system(f"{first}-esp", "vfat", "/boot/efi")
    config += [_format(f"{name}-esp", "vfat") for name in others]
    device = f"{first}-rest"
    if raid is not None:
        members = [f"{name}-rest" for name, _ in disks]
        array = {"type": "raid", "id": "md-0", "name": "md0", "raidlevel": raid, "spare_devices": []}
        config.append({**array, "devices": members})
        count = len(disks)
        kept = {0: count, 1: 1, 5: count - 1, 6: count - 2, 10: count // 2}[raid]
        device, room = "md-0", kept * (room - _RAID_RESERVE)
    return _section(config + (_volumes(device, room) if lvm else _file_system(device, "ext4", "/")))


def _disk(name: str, *, preserve: bool) -> dict[str, Any]:
    action = {"type": "disk", "id": name, "serial": UNRESOLVED, "ptable": "gpt", "preserve": preserve}
    return action if preserve else {**action, "wipe": "superblock-recursive"}


def _new(name: str, device: str, number: int, region: tuple[int, int], kind: str) -> dict[str, Any]:
    at = {"device": device, "number": number, "offset": region[0], "size": region[1]}
    return {"type": "partition", "id": name, **at, "partition_type": kind, "wipe": "superblock"}


def _volumes(device: str, room: int) -> list[dict[str, Any]]:
    """/boot is a volume of its own, so that root can grow or be replaced without it."""
    root = (room - _BOOT - 2 * _EXTENT) // _EXTENT * _EXTENT
    group = {"type": "lvm_volgroup", "id": "vg-0", "name": "ubuntu-vg", "devices": [device]}
    volumes = [
        {"type": "lvm_partition", "id": f"lv-{name}", "name": name, "volgroup": "vg-0", "size": length}
        for name, length in (("boot", _BOOT), ("root", root))
    ]
    return [group, *volumes, *_file_system("lv-boot", "ext4", "/boot"), *_file_system("lv-root", "ext4", "/")]


def _format(volume: str, kind: str, *, preserve: bool = False) -> dict[str, Any]:
    action = {"type": "format", "id": f"format-{volume}", "volume": volume, "fstype": kind}
    return {**action, "preserve": True} if preserve else action


def _file_system(volume: str, kind: str, path: str, *, preserve: bool = False) -> list[dict[str, Any]]:
    mount = {"type": "mount", "id": f"mount-{volume}", "device": f"format-{volume}", "path": path}
    return [_format(volume, kind, preserve=preserve), mount]


def _section(config: list[dict[str, Any]]) -> dict[str, Any]:
    """Curtin needs this `grub`, else it takes other loaders' entries for duplicates; without `swap`, it makes a swap
    file of some GiB.
    """
    grub = {"reorder_uefi": False, "remove_duplicate_entries": False}
    return {"swap": {"size": 0}, "grub": grub, "config": config}


# --- The installer's file ---------------------------------------------------------------------------------------------


def guard_commands(folder: str) -> list[str]:
    """The early commands that run this folder's guard: before and after all others."""
    return [f"{PYTHON} {folder}/guard.py", f"{PYTHON} {folder}/guard.py {SECOND_RUN}"]


def installer_document(file: Path) -> dict[str, Any]:
    """Read the installer's file as it takes it: JSON where winhost wrote it, and YAML where the installer wrote it from
    user data, vendor data or the kernel's command line, as cloud-init has merged them.
    """
    text = file.read_text("utf-8")
    try:
        whole = json.loads(text)
    except ValueError:
        try:
            import yaml
        except ImportError:
            raise GuardStop("installer-file", f"{file} is not JSON, and there is no reader of YAML here") from None
        try:
            whole = yaml.safe_load(text)
        except yaml.YAMLError:
            raise GuardStop("installer-file", f"{file} is neither JSON nor YAML") from None
    if not isinstance(whole, dict):
        raise GuardStop("installer-file", f"{file} is not a mapping")
    inner = whole.get("autoinstall", whole)
    if not isinstance(inner, dict) or ("autoinstall" in whole and len(whole) > 1):
        raise GuardStop("installer-file", f"{file} has other keys beside `autoinstall`, or no mapping there")
    return inner


def check_commands(document: Mapping[str, Any], folder: str) -> None:
    """The guard is the first early command, and the last one: nothing changes the file behind it."""
    commands = document.get("early-commands") or []
    ours = commands[1:] if commands[:1] == [FETCHING] else commands
    first, last = guard_commands(folder)
    if ours[:1] != [first] or ours[-1:] != [last]:
        raise GuardStop("early-commands", f"they have to begin with `{first}` and to end with `{last}`")


def check_storage(document: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """The installer would do with disks exactly what follows from the order. What a file leaves out is what the
    installer takes by default: without a storage section it wipes the largest disk.
    """
    asked = document.get("interactive-sections") or []
    if asked and (not isinstance(asked, list) or {"*", "storage"} & set(map(str, asked))):
        raise GuardStop("storage", "the installer would ask for its disks (interactive-sections)")
    if "storage" not in document:
        raise GuardStop("storage", "the installer's file has no storage section: it would wipe the largest disk")
    found, told = normal(document["storage"]), normal(wanted)
    if found != told:
        raise GuardStop("storage", f"the installer's file differs from the order: {difference(found, told)}")


def normal(storage: Any) -> Any:
    """The same for all spellings that mean the same: actions without what says no more than its absence, and GUIDs in
    lower case. Elsewhere `false` is not the default: of `grub` it says what is not done.
    """
    if not isinstance(storage, dict) or not isinstance(storage.get("config"), list):
        return storage
    return {**storage, "config": [_normal_action(each) for each in storage["config"]]}


def _normal_action(action: Any) -> Any:
    if not isinstance(action, dict):
        return action
    kept = {
        key: value
        for key, value in action.items()
        if value is not None and not (value is False and key in ("preserve", "resize", "grub_device"))
    }
    kind = kept.get("partition_type")
    return {**kept, "partition_type": kind.lower()} if isinstance(kind, str) else kept


def difference(found: Any, told: Any, path: str = "storage") -> str:
    """Describe the first difference."""
    pairs: list[tuple[Any, Any, Any]] = []
    if isinstance(found, dict) and isinstance(told, dict):
        pairs = [(key, found.get(key), told.get(key)) for key in sorted({*found, *told}, key=str)]
    elif isinstance(found, list) and isinstance(told, list) and len(found) == len(told):
        pairs = list(zip(range(len(told)), found, told, strict=True))
    for key, one, other in pairs:
        if one != other:
            name = other.get("id", key) if isinstance(other, dict) else key
            return difference(one, other, f"{path}.{name}")
    return f"{path} is {str(found)[:80]}, and not {str(told)[:80]}"
