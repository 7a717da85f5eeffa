"""What the scripts of disks, BitLocker and boot entries do, on a simulated host."""

import json
import re
from typing import Any

from winhost.core.answers import Json
from winhost.lab.physics.found.disks import Disks, efi_folder
from winhost.lab.physics.found.firmware import FirmwarePart
from winhost.lab.physics.parts import SetCall
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import bad_request, not_ours, own_error, wrong_place
from winhost.resources.windows.own_partition import LINUX_PARTITION, OWN_EFI, STAGING
from winhost.resources.windows.partition import EFI, LINUX

DATA = "data"
_OF_LINUX = re.compile(r"\\EFI\\(ubuntu|debian)\\", re.IGNORECASE)
_TYPES = {LINUX_PARTITION: LINUX, OWN_EFI: EFI}
_BACKUPS = {"active-directory": "Backup-BitLockerKeyProtector", "entra": "BackupToAAD-BitLockerKeyProtector"}


def check_accepted(asked: SetCall, what: str, where: str = "") -> None:
    """Raises CmdletError."""
    if DATA not in asked.accept:
        written = " ".join(filter(None, ("written", where)))
        raise own_error("HoldsData", "ResourceBusy", f"{what} would be {written}, without the consent for it.")


# ---- partitions


def set_size(machine: Machine, asked: SetCall) -> None:
    """Raises CmdletError."""
    disks, size = machine.part(Disks), int(str(asked.desired["size"]))
    check_accepted(asked, "A partition table")
    found = next(r for r in machine.instances("Partition") if r.key["partition"] == asked.key["partition"].lower())
    if not found.state["boot"]:
        raise wrong_place("Only the partition that Windows runs from is resized.")
    limits = disks.limits(found)
    smallest, largest = limits["smallest"], limits["largest"]
    if not smallest <= size <= largest:
        said = f"It can have between {smallest} and {largest} bytes now, and not {size}."
        raise own_error("SizeNotSupported", "InvalidArgument", said)
    disks.resize_partition(found.key["partition"], size)


def set_own_partition(machine: Machine, asked: SetCall) -> None:
    """Made, or taken away. Raises CmdletError."""
    name = asked.key["name"]
    if name not in (LINUX_PARTITION, STAGING, OWN_EFI):
        raise bad_request("winhost makes the partitions linux, staging and efi.")
    if "made" not in asked.desired:
        raise wrong_place("A partition stays where it is and as large as it is: take it away first.")
    check_accepted(asked, "A partition table")
    record = machine.own_vms.read("partition", name)
    if not asked.desired["made"]:
        _remove_partition(machine, name, record)
        return
    if name != LINUX_PARTITION and asked.desired.get("label") != "WINHOST":
        raise bad_request("FAT32 has labels of eleven characters: that of staging and efi is WINHOST.")
    parts = {part: asked.desired.get(part) for part in ("disk", "offset", "size", "label")}
    if None in parts.values():
        raise bad_request("A partition is made with all of these.")
    _make_partition(machine, name, record, parts)


def _make_partition(machine: Machine, name: str, record: Any, parts: dict[str, Json]) -> None:
    disks, mine = machine.part(Disks), {**parts, "partition": None, "complete": False}
    found = None
    if record is not None:
        if any(record[part] != parts[part] for part in ("disk", "offset", "size")):
            raise wrong_place(f"winhost made {name} elsewhere: take that away first.")
        mine["partition"] = record["partition"]
        found = disks.own_partition(record)
    if found is None:
        found = _new_partition(machine, name, mine)
    mine["partition"] = found
    machine.own_vms.write("partition", name, mine)
    unprotect(disks, found)
    disks.format_volume(found, "NTFS" if name == LINUX_PARTITION else "FAT32", str(parts["label"]))
    disks.set_partition(found, no_letter=True, **({"type": _TYPES[name]} if name in _TYPES else {}))
    machine.own_vms.write("partition", name, {**mine, "complete": True})


def _new_partition(machine: Machine, name: str, mine: dict[str, Any]) -> str:
    disks, disk, offset, size = machine.part(Disks), str(mine["disk"]), int(mine["offset"]), int(mine["size"])
    there = [each for each in disks.disks if each.state["guid"] == disk]
    if len(there) != 1:
        said = f"{len(there)} disks of this host have the GUID {disk}, and one is needed."
        raise own_error("NoSuchDisk", "ObjectNotFound", said)
    for record in machine.instances("Partition"):
        begin = record.state["offset"]
        beside = begin >= offset + size or begin + record.state["size"] <= offset
        if record.state["disk"] == disk and not beside:
            said = f"The partition {record.key['partition']} is there, in the way."
            raise own_error("NotFree", "ResourceExists", said)
    mine["partition"] = None
    machine.own_vms.write("partition", name, mine)
    made = disks.partitions[disks.new_partition(disk, offset, size)]
    found = disks.own_partition(mine)
    if found is None:
        said = f"Windows made it at {made['offset']} with {made['size']} bytes, and not at {offset} with {size}."
        raise own_error("NotThere", "InvalidResult", said)
    return found


def _remove_partition(machine: Machine, name: str, record: Any) -> None:
    if record is None:
        return
    disks = machine.part(Disks)
    found = disks.own_partition(record)
    if found is None and record["partition"] in disks.partitions:
        where = "is not where winhost put it, or not as large any more"
        raise not_ours(f"The partition {record['partition']} {where}: winhost leaves it alone.")
    if found is not None:
        for entry in _entries_of_linux(machine, found) if name == OWN_EFI else ():
            machine.part(FirmwarePart).remove_entry(entry["entry"])
        unprotect(disks, found)
        disks.remove_partition(found)
    machine.own_vms.write("partition", name, None)


def protect(disks: Disks, guid: str) -> None:
    """Read-only by the attribute of its table. Raises CmdletError."""
    disks.set_read_only(guid, read_only=True)
    disks.mount_anew(guid)
    if disks.is_writable(guid):
        said = "Windows made the partition read-only, and its volume can still be written to."
        raise own_error("StillWritable", "InvalidResult", said)


def unprotect(disks: Disks, guid: str) -> None:
    if guid in disks.read_only:
        disks.set_read_only(guid, read_only=False)
        disks.mount_anew(guid)


# ---- BitLocker


def set_suspension(machine: Machine, asked: SetCall) -> None:
    """Suspended for so many restarts, or resumed. Raises CmdletError."""
    disks, restarts = machine.part(Disks), asked.desired["suspended"]
    name = _volume(disks, asked.key["volume"])
    conversion = disks.volumes[name]["conversion"]
    if conversion != "fully-encrypted":
        is_so = "".join(part.capitalize() for part in conversion.split("-"))
        raise wrong_place(f"The volume is {is_so}: there is nothing to suspend, or it is under way.")
    if restarts is None:
        disks.resume_bitlocker(name)
        return
    if disks.escrow(name) is None:
        said = "Nobody has proven that the recovery key of this volume is kept elsewhere: do that first."
        raise own_error("NotEscrowed", "InvalidOperation", said)
    disks.suspend_bitlocker(name, int(restarts))


def set_escrow(machine: Machine, asked: SetCall) -> None:
    """The proof, or none any more. Raises CmdletError."""
    disks, proof = machine.part(Disks), asked.desired.get("proof")
    name = _volume(disks, asked.key["volume"])
    if proof is None:
        raise bad_request("proof is none, active-directory, entra or typed.")
    if proof == "none":
        machine.software.write_registry(f"escrow {name.lower()}", None)
        return
    known = [each["id"] for each in disks.volumes[name]["protectors"] if each["kind"] == "recovery-password"]
    if not known:
        raise own_error("NoRecoveryKey", "ObjectNotFound", "The volume has no recovery password: add one first.")
    if proof == "typed":
        _check_typed(disks, str(asked.secret))
    else:
        disks.backup_key(str(proof), _BACKUPS[str(proof)])
    kept = {"proof": proof, "last_group": asked.desired.get("last_group"), "protector": known[0]}
    machine.software.write_registry(f"escrow {name.lower()}", json.dumps(kept))


def _check_typed(disks: Disks, digits: str) -> None:
    if not re.fullmatch("[0-9]{6}", digits) or not disks.physics.recovery_password.endswith(f"-{digits}"):
        said = "These are not the last six digits of the recovery key of this volume."
        raise own_error("WrongDigits", "PermissionDenied", said)


def _volume(disks: Disks, asked: str) -> str:
    return next(name for name in disks.volumes if name.casefold() == asked.casefold())


# ---- the firmware


def set_boot_entry(machine: Machine, asked: SetCall) -> None:
    """Made, or taken away. Raises CmdletError."""
    name, firmware = asked.key["name"], machine.part(FirmwarePart)
    if name != "installer":
        raise bad_request("winhost makes the boot entry installer.")
    if "made" not in asked.desired:
        raise wrong_place("A boot entry stays what it is: take it away first.")
    check_accepted(asked, "Firmware variables")
    record = machine.own_vms.read("boot", name)
    if not asked.desired["made"]:
        if record is not None:
            if (found := firmware.own_entry(name, record)) is not None:
                firmware.remove_entry(found)
            machine.own_vms.write("boot", name, None)
        return
    partition, path = asked.desired.get("partition"), asked.desired.get("path")
    if partition is None or path is None:
        raise bad_request("A boot entry is made with all of these.")
    _make_entry(machine, name, str(partition), str(path))


def _make_entry(machine: Machine, name: str, partition: str, path: str) -> None:
    firmware, record = machine.part(FirmwarePart), {"partition": partition, "path": path}
    check_uefi(firmware)
    if partition not in machine.part(Disks).partitions:
        said = f"There is no partition {partition} for the boot entry: make that first."
        raise own_error("WrongPlace", "ObjectNotFound", said)
    machine.own_vms.write("boot", name, record)
    if firmware.own_entry(name, record) is None:
        firmware.make_entry(f"winhost-{name}", partition, path)


def check_uefi(firmware: FirmwarePart) -> None:
    """Raises CmdletError."""
    if firmware.kind != "uefi":
        raise own_error("NotUefi", "InvalidOperation", "Windows was started by a BIOS, which has no boot entries.")


def set_next(machine: Machine, asked: SetCall) -> None:
    """What is started once. Raises CmdletError."""
    firmware, number = machine.part(FirmwarePart), asked.desired["next"]
    check_uefi(firmware)
    if number is None:
        _bcdedit(firmware, "/deletevalue", "{fwbootmgr}", "bootsequence")
    else:
        _bcdedit(firmware, "/set", "{fwbootmgr}", "bootsequence", _bcd_entry(firmware, str(number)))
    if firmware.boot["next"] != number:
        said = f"BootNext was set to {number or ''}, and is {firmware.boot['next'] or ''}."
        raise own_error("FirmwareForgot", "InvalidResult", said)


def _bcd_entry(firmware: FirmwarePart, number: str) -> str:
    entries = firmware.boot["entries"]
    entry = next((each for each in entries if each["entry"] == number and each["path"]), None)
    if entry is None:
        said = f"The firmware has no boot entry {number} that starts a file."
        raise own_error("NoSuchEntry", "ObjectNotFound", said)
    alike = [each for each in entries if all(each[part] == entry[part] for part in ("description", "path"))]
    if len(alike) != 1:
        called = f"called {entry['description']} with the path {entry['path']}"
        raise own_error(
            "NoSuchEntry", "ObjectNotFound", f"bcdedit has {len(alike)} entries {called}, and one is needed."
        )
    return firmware.bcd_id(entry)


def _bcdedit(firmware: FirmwarePart, *arguments: str) -> None:
    code, output = firmware.bcdedit(arguments)
    if code:
        raise own_error("BcdRefused", "InvalidOperation", f"bcdedit.exe: {code} {' '.join(output.split())}")


# ---- files of EFI system partitions


def set_backup(machine: Machine, asked: SetCall) -> None:
    """Copied, or put back by the copy. Raises CmdletError."""
    disks = machine.part(Disks)
    record = next(r for r in machine.instances("EfiBackup") if r.key["partition"] == asked.key["partition"].lower())
    guid = record.key["partition"]
    files = disks.files_on(guid)
    if asked.desired["kept"]:
        machine.files.make_folders("C:\\ProgramData\\winhost", efi_folder(guid))
        whole = [{"path": each["path"], "sha256": each["sha256"]} for each in files if each["sha256"]]
        for each in whole:
            size = next(other["size"] for other in files if other["path"] == each["path"])
            disks.keep_efi_file(f"{efi_folder(guid)}\\{each['sha256']}", each["sha256"], size)
        listed = {"files": whole, "entries": [each["path"] for each in _entries_of_linux(machine, guid)]}
        machine.files.write(f"{efi_folder(guid)}\\files.json", json.dumps(listed).encode())
        return
    check_accepted(asked, "Files of the EFI system partition")
    _remove_entries_since(machine, guid)
    copy = disks.efi_copy(guid) or []
    changed, added = disks.since_copy(guid, copy)
    for file in (each for each in copy if each["path"] in changed):
        kept = json.loads(machine.files.read(f"{efi_folder(guid)}\\{file['sha256']}") or b"{}")
        disks.put_efi_file(guid, str(file["path"]), kept)
    for path in added:
        disks.put_efi_file(guid, path, None)
    machine.files.remove_folder(efi_folder(guid))


def _entries_of_linux(machine: Machine, guid: str) -> list[Any]:
    firmware = machine.part(FirmwarePart)
    entries: list[Any] = firmware.boot["entries"] if firmware.kind == "uefi" else []
    return [e for e in entries if e["partition"] == guid and _OF_LINUX.search(str(e["path"]))]


def _remove_entries_since(machine: Machine, guid: str) -> None:
    text = machine.files.read(f"{efi_folder(guid)}\\files.json")
    known = json.loads(text).get("entries") if text else None
    if known is None:
        return
    for entry in _entries_of_linux(machine, guid):
        if entry["path"] not in known:
            machine.part(FirmwarePart).remove_entry(entry["entry"])
