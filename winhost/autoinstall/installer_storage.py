"""Make the storage section for the guard's order, and check the file that the installer will use.

This is a part of guard.py, which runs in the installer; winhost makes the section of the installer's file with the same
code. The section has action lists, never `layout`: each form of `layout` selects a disk by its size or leaves out
partitions, which the installer then deletes. Every size and offset is in bytes. No disk in the section matches a disk
of a machine until the guard has compared the machine and inserted the paths of its disks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

UNRESOLVED = "WINHOST-UNRESOLVED"
# The installer is a snap: the system's Python must not use its paths and libraries.
PYTHON = "env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin /usr/bin/python3 -I"
SECOND_RUN = "again"
FETCHING = f"{PYTHON} /cdrom/winhost/fetch.py"
ESP_TYPE, LINUX_TYPE = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b", "0fc63daf-8483-4772-8e79-3d69d8477de4"

_MIB = 1 << 20
_ESP, _BOOT, _EXTENT = 1024 * _MIB, 2048 * _MIB, 4 * _MIB
_TABLE = _MIB  # for the backup of the table at the end of a disk
_RAID_RESERVE = 129 * _MIB  # the most that mdadm reserves on a member
_FLAGS: dict[str, dict[str, Any]] = {
    "esp": {"flag": "boot", "grub_device": True},
    "msr": {"flag": "msftres"},
    "target": {"wipe": "superblock"},
}


class GuardStop(Exception):
    """The reason why the guard stops the installer, as a code and a message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


def normalize_serial(serial: str) -> str:
    """Return a serial number without the prefixes and fillers of Windows, NVMe and SCSI."""
    return (
        re.sub(r"^(eui|naa|nvme|uuid|t10)\.", "", serial.strip().lower().rstrip(".")).replace("_", "").replace(" ", "")
    )


def is_blank_serial(serial: str) -> bool:
    """Tell whether this is not a serial number: disks without one report dashes, blanks or zeros."""
    return not normalize_serial(serial).strip("-.0")


def normalize_name(name: str) -> str:
    """Return the letters and digits of a name, in lower case."""
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
    """Make the section that lists and preserves all partitions; only the target gets a new file system."""
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
    """Make the section that replaces everything on these disks. disks: their ids and sizes; raid: a level for all of
    them together; lvm: a volume group for the root.
    """
    config: list[dict[str, Any]] = []
    room = (min(size for _, size in disks) - _MIB - _ESP - _TABLE) // _MIB * _MIB
    for name, _ in disks:
        config.append(_disk(name, preserve=False))
        esp = {"flag": "boot", "grub_device": True}
        config.append(_new_partition(f"{name}-esp", name, 1, (_MIB, _ESP), ESP_TYPE) | esp)
        config.append(_new_partition(f"{name}-rest", name, 2, (_MIB + _ESP, room), LINUX_TYPE))
    first, *others = [name for name, _ in disks]
    config += _file_system(f"{first}-esp", "vfat", "/boot/efi")
    config += [_format(f"{name}-esp", "vfat") for name in others]
    device = f"{first}-rest"
    if raid is not None:
        members = [f"{name}-rest" for name, _ in disks]
        array = {"type": "raid", "id": "md-0", "name": "md0", "raidlevel": raid, "spare_devices": []}
        config.append({**array, "devices": members})
        count = len(disks)
        data_disks = {0: count, 1: 1, 5: count - 1, 6: count - 2, 10: count // 2}[raid]
        device, room = "md-0", data_disks * (room - _RAID_RESERVE)
    return _section(config + (_volumes(device, room) if lvm else _file_system(device, "ext4", "/")))


def _disk(name: str, *, preserve: bool) -> dict[str, Any]:
    action = {"type": "disk", "id": name, "serial": UNRESOLVED, "ptable": "gpt", "preserve": preserve}
    return action if preserve else {**action, "wipe": "superblock-recursive"}


def _new_partition(name: str, device: str, number: int, region: tuple[int, int], kind: str) -> dict[str, Any]:
    position = {"device": device, "number": number, "offset": region[0], "size": region[1]}
    return {"type": "partition", "id": name, **position, "partition_type": kind, "wipe": "superblock"}


def _volumes(device: str, room: int) -> list[dict[str, Any]]:
    """Make the volumes. /boot is separate, so that root can grow or be replaced without it."""
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
    """Make the section. Without this `grub`, curtin treats entries of other loaders as duplicates; without `swap`, it
    makes a swap file of some GiB.
    """
    grub = {"reorder_uefi": False, "remove_duplicate_entries": False}
    return {"swap": {"size": 0}, "grub": grub, "config": config}


# --- The installer's file ---------------------------------------------------------------------------------------------


def guard_commands(folder: str) -> list[str]:
    """Return the early commands that run the guard in this folder: the first and the last."""
    return [f"{PYTHON} {folder}/guard.py", f"{PYTHON} {folder}/guard.py {SECOND_RUN}"]


def read_installer_document(file: Path) -> dict[str, Any]:
    """Read the installer's file: JSON if winhost wrote it, YAML if the installer wrote it from user data, vendor data
    or the kernel's command line, as merged by cloud-init.
    """
    text = file.read_text("utf-8")
    try:
        whole = json.loads(text)
    except ValueError:
        try:
            import yaml
        except ImportError:
            raise GuardStop("installer-file", f"{file} is not JSON, and this installer has no YAML parser") from None
        try:
            whole = yaml.safe_load(text)
        except yaml.YAMLError:
            raise GuardStop("installer-file", f"{file} is neither JSON nor YAML") from None
    if not isinstance(whole, dict):
        raise GuardStop("installer-file", f"{file} is not a mapping")
    inner = whole.get("autoinstall", whole)
    if not isinstance(inner, dict) or ("autoinstall" in whole and len(whole) > 1):
        raise GuardStop("installer-file", f"{file} has other keys next to `autoinstall`, or no mapping in it")
    return inner


def check_commands(document: Mapping[str, Any], folder: str) -> None:
    """Check that the guard is the first and the last early command, so that no command changes the file after it."""
    commands = document.get("early-commands") or []
    after_fetch = commands[1:] if commands[:1] == [FETCHING] else commands
    first, last = guard_commands(folder)
    if after_fetch[:1] != [first] or after_fetch[-1:] != [last]:
        raise GuardStop("early-commands", f"they must begin with `{first}` and end with `{last}`")


def check_storage(document: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Check that the installer's storage section is the expected one, which follows from the order. The installer has
    defaults for omitted values: without a storage section it wipes the largest disk.
    """
    interactive = document.get("interactive-sections") or []
    if interactive and (not isinstance(interactive, list) or {"*", "storage"} & set(map(str, interactive))):
        raise GuardStop("storage", "the installer would ask for its disks (interactive-sections)")
    if "storage" not in document:
        raise GuardStop("storage", "the installer's file has no storage section: it would wipe the largest disk")
    found, ordered = normalize_storage(document["storage"]), normalize_storage(expected)
    if found != ordered:
        difference = describe_difference(found, ordered)
        raise GuardStop("storage", f"the installer's file differs from the order: {difference}")


def normalize_storage(storage: Any) -> Any:
    """Make equivalent sections equal: drop values of actions that mean the same as their absence, and write GUIDs in
    lower case. `false` in `grub` is kept, because it is not the default there.
    """
    if not isinstance(storage, dict) or not isinstance(storage.get("config"), list):
        return storage
    return {**storage, "config": [_normalize_action(each) for each in storage["config"]]}


def _normalize_action(action: Any) -> Any:
    if not isinstance(action, dict):
        return action
    kept = {
        key: value
        for key, value in action.items()
        if value is not None and not (value is False and key in ("preserve", "resize", "grub_device"))
    }
    kind = kept.get("partition_type")
    return {**kept, "partition_type": kind.lower()} if isinstance(kind, str) else kept


def describe_difference(found: Any, expected: Any, path: str = "storage") -> str:
    """Describe the first difference."""
    pairs: list[tuple[Any, Any, Any]] = []
    if isinstance(found, dict) and isinstance(expected, dict):
        pairs = [(key, found.get(key), expected.get(key)) for key in sorted({*found, *expected}, key=str)]
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = list(zip(range(len(expected)), found, expected, strict=True))
    for key, found_value, expected_value in pairs:
        if found_value != expected_value:
            name = expected_value.get("id", key) if isinstance(expected_value, dict) else key
            return describe_difference(found_value, expected_value, f"{path}.{name}")
    return f"{path} is {str(found)[:80]}, and not {str(expected)[:80]}"
