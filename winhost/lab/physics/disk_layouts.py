"""Defaults for disks of host files: partitions as Windows Setup makes them, files, controllers and encryption."""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from winhost.core.answers import Json, Record
from winhost.model.units import GiB, MiB
from winhost.resources.windows.disks import BASIC_DATA, EFI, RECOVERY, RESERVED

_SERVICES = {"NVMe": ("Standard NVM Express Controller", "stornvme")}
_SERVICES |= dict.fromkeys(("SATA", "ATA"), ("Standard SATA AHCI Controller", "storahci"))
_SERVICES |= {"RAID": ("Avago MegaRAID SAS Adapter", "megasas35i"), "SAS": ("Microsemi HBA", "SmartPqi")}


def make_guid(*names: object) -> str:
    """Make a GUID from names: the same names give the same GUID."""
    return str(uuid5(NAMESPACE_OID, "/".join(map(str, names))))


def complete_disk(record: Record, number: int) -> Record:
    """Add default properties to the record of a disk."""
    gpt = record.state.get("style") == "GPT"
    defaults: Mapping[str, Json] = {
        "guid": make_guid(record.key["disk"]) if gpt else None,
        "number": number,
        "sector": 512,
        "offline": False,
        "read_only": False,
        "health": "healthy",
    }
    return Record({**defaults, **record.state}, record.key)


def default_partitions(disk: Record, letters: Iterator[str]) -> Iterator[Record]:
    """Yield a disk's partitions as Windows Setup makes them, or Disk Management on a data disk. letters: after C."""
    if disk.state["style"] != "GPT":
        return
    boot, system = bool(disk.state["boot"]), bool(disk.state["system"])
    kinds = [*([(EFI, 260 * MiB)] if system else []), (RESERVED, 16 * MiB)]
    kinds += [(BASIC_DATA, 0)] if boot or not system else []
    kinds += [(RECOVERY, 768 * MiB)] if boot else []
    offset, end = MiB, int(disk.state["size"]) // MiB * MiB - MiB
    fixed = sum(size for _, size in kinds)
    for number, (kind, size) in enumerate(kinds, 1):
        data = kind == BASIC_DATA
        state = {
            "disk": disk.state["guid"],
            "number": number,
            "offset": offset,
            "size": size or end - MiB - fixed,
            "type": kind,
            "letter": ("C" if boot else next(letters)) if data else None,
            "boot": data and boot,
            "system": kind == EFI,
            "hidden": kind == RECOVERY,
            "no_letter": not data,
        }
        yield Record(state, {"partition": make_guid(disk.key["disk"], number)})
        offset += state["size"]


def default_limits(state: Mapping[str, Any]) -> dict[str, Json]:
    """Return the default limits of a volume's size. Windows keeps two fifths, and at least 40 GiB."""
    smallest = min(state["size"], max(40 * GiB, state["size"] // 5 * 2 // MiB * MiB))
    holders = ["page-file"]
    return {
        "smallest": smallest,
        "largest": state["size"],
        "free": state["size"] - smallest,
        "health": "healthy",
        "holders": holders,
        "last_held_by": None,
    }


def default_boot_files(others: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the files of Windows on its EFI system partition, then `others`."""
    manager = {"size": 2_886_040, "sha256": "5b1f5d0c7a3e4e0f9f6f0d0e6b1a2c3d4e5f60718293a4b5c6d7e8f901234567"}
    yield from (("EFI\\Boot\\bootx64.efi", manager), ("EFI\\Microsoft\\Boot\\bootmgfw.efi", manager))
    yield "EFI\\Microsoft\\Boot\\BCD", {"size": None, "sha256": None}
    yield from ((path, {"size": 966_664, "sha256": sha256(path.encode()).hexdigest()}) for path in others)


def default_controllers(disks: list[Record]) -> Iterator[Record]:
    """Yield a storage controller for each bus type of the disks."""
    for number, bus in enumerate(dict.fromkeys(str(disk.state["bus"]) for disk in disks)):
        if bus in _SERVICES:
            name, service = _SERVICES[bus]
            instance = f"PCI\\VEN_144D&DEV_A80C&SUBSYS_A801144D&REV_00\\4&{number:08X}&0&00E{number}"
            mode = "raid" if service in ("megasas35i", "SmartPqi") else "standard"
            yield Record({"name": name, "service": service, "mode": mode}, {"instance": instance})


def complete_encryption(record: Record) -> Record:
    """Add default properties to the BitLocker record of a volume."""
    encrypted = record.state["protection"] != "off"
    kinds = ["tpm", "recovery-password"] if encrypted else []
    volume = record.key["volume"]
    protectors = [{"id": make_guid("protector", volume, kind), "kind": kind} for kind in kinds]
    defaults: Mapping[str, Json] = {
        "conversion": "fully-encrypted" if encrypted else "fully-decrypted",
        "percentage": 100 if encrypted else 0,
        "suspended": None,
        "protectors": protectors,
        "pcrs": [7, 11] if encrypted else [],
    }
    return Record({**defaults, **record.state}, record.key)
