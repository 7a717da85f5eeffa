"""Disks of a simulated host: partitions and their size limits, EFI system partitions, BitLocker, and controllers."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from pydantic import Field

from winhost.core.answers import Json, Record
from winhost.lab.physics.disk_layouts import (
    complete_disk,
    complete_encryption,
    default_boot_files,
    default_controllers,
    default_limits,
    default_partitions,
    make_guid,
)
from winhost.lab.physics.firmware import FirmwarePart
from winhost.lab.physics.lab_section import part_physics
from winhost.lab.physics.parts import Change, Host, ManagedKind, Part, SetCall, StoredRecord, as_cmdlet
from winhost.lab.physics.windows_errors import WindowsObject, agent_error, refusal, refuse_if, windows_object
from winhost.lab.physics.windows_files import FOLDER
from winhost.model.units import MiB
from winhost.model.written import Closed
from winhost.resources.windows.disks import BASIC_DATA, EFI, LINUX, LINUX_PARTITION, OWN_EFI

Listing = Mapping[str, Callable[[], Iterable[Record]]]
_TIMEOUT_ERROR = agent_error(
    "NotInTime", "OperationTimeout", "Windows did not say within 120 s how far the volume can shrink."
)
_NO_ESCROW = {"proof": "none", "last_group": None, "protector": None}
_LINUX_BOOT_FILE = re.compile(r"EFI\\(ubuntu|debian)\\|EFI\\BOOT\\(fb|mm|grub|shim)x64\.efi\Z", re.IGNORECASE)
_LINUX_LOADER = re.compile(r"\\EFI\\(ubuntu|debian)\\", re.IGNORECASE)
_TYPES = {LINUX_PARTITION: LINUX, OWN_EFI: EFI}
_BACKUPS = {"active-directory": "Backup-BitLockerKeyProtector", "entra": "BackupToAAD-BitLockerKeyProtector"}
_INSTALLED_FILES = (
    ("EFI\\Boot\\bootx64.efi", "d1" * 32),
    ("EFI\\BOOT\\fbx64.efi", "d2" * 32),
    ("EFI\\ubuntu\\grubx64.efi", "d3" * 32),
)

_UBUNTU_ENTRY: Mapping[str, Any] = {
    "entry": "0006",
    "description": "ubuntu",
    "active": True,
    "path": "\\EFI\\ubuntu\\grubx64.efi",
}


@part_physics("disks")
class DisksPhysics(Closed):
    """The physics of disks and their partitions."""

    recovery_password: str = Field(
        default="111111-222222-333333-444444-555555-666666-777777-888888",
        description="of each volume that has one; no answer may ever contain it",
    )
    stops_at: int | None = Field(default=None, description="bytes at which a shrink stops early, and fails")
    installs: bool = Field(
        default=False, description="a restart leaves Ubuntu's boot loader on the EFI partition, and its entry"
    )
    left: tuple[str, ...] = Field(default=(), description="files of others on the EFI partitions")
    looks_for_ever: bool = Field(default=False, description="Windows never returns how far a volume can shrink")
    misplaces: bool = Field(default=False, description="a new partition begins 1 MiB behind the requested offset")
    meddles: tuple[str, ...] = Field(
        default=(), description="files on a partition that another user changes before it becomes read-only"
    )
    stays_writable: bool = Field(default=False, description="a partition that becomes read-only can be written to")
    keeps_keys: tuple[str, ...] = Field(
        default=(), description="directories that store recovery keys: active-directory, entra; left out, none"
    )


def encode_placeholder(sha256: str | None, size: int | None) -> bytes:
    """Encode the hash and the size of a file whose content is not stored."""
    return json.dumps({"sha256": sha256, "size": size}).encode()


def describe_bytes(data: bytes) -> dict[str, Json]:
    return {"size": len(data), "sha256": sha256(data).hexdigest()}


def efi_folder(guid: str) -> str:
    """Return the host's folder for a copy of an EFI system partition."""
    return f"{FOLDER}\\esp-{guid}"


class Disks(Part):
    """The disks of one host. Partitions, and what is on them, are stored by the partition's GUID."""

    administrator_resources = ("ResizeLimit", "EfiVolume", "EfiBackup")
    administrator_settable = ("Partition", "OwnPartition")

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.physics = DisksPhysics.model_validate(host.lab.found.get("disks", {}))
        self.disks = [complete_disk(record, number) for number, record in enumerate(host.initial.get("Disk", ()))]
        partitions: Iterable[Record] | None = host.initial.get("Partition")
        if partitions is None:  # then as Windows does it
            after_c = iter("DEFGHIJKLMNOPQRSTUVW")
            partitions = [each for disk in self.disks for each in default_partitions(disk, after_c)]
        self.partitions = {r.key["partition"]: dict(r.state) for r in partitions}
        recorded_limits = {r.key["partition"]: r.state for r in host.initial.get("ResizeLimit", ())}
        self._limits = {
            guid: dict(recorded_limits.get(guid) or default_limits(state)) for guid, state in self.partitions.items()
        }
        self.labels: dict[str, tuple[str, str]] = {}
        self.read_only: set[str] = set()  # by the attribute of the table
        self._mounted_read_only: set[str] = set()
        self._files: dict[str, dict[str, tuple[str, bytes]]] = {}
        self._efi_volumes = {r.key["partition"]: dict(r.state) for r in host.initial.get("EfiVolume", ())}
        self.volumes = {
            r.key["volume"]: dict(r.state) for r in map(complete_encryption, host.initial.get("BitLocker", ()))
        }
        self._controllers = host.initial.get("StorageController", tuple(default_controllers(self.disks)))
        page_file = windows_object("Win32_PageFileUsage", Name="C:\\pagefile.sys")
        shadow_copy = windows_object("Win32_ShadowCopy")
        host.cim_classes["Win32_PageFileUsage"] = partial(self._objects_if_held, "page-file", page_file)
        host.cim_classes["Win32_Process"] = self._processes
        host.cim_classes["Win32_ShadowCopy"] = partial(self._objects_if_held, "shadow-copies", shadow_copy)
        host.cim_classes["Win32_EncryptableVolume"] = self._encryptable_volumes

    def _encryptable_volumes(self) -> list[WindowsObject]:
        return [
            windows_object("Win32_EncryptableVolume", DeviceID=volume, DriveLetter=volume) for volume in self.volumes
        ]

    def records(self) -> Listing:
        return {
            "Disk": lambda: self.disks,
            "Partition": self._list_partitions,
            "ResizeLimit": self._list_resize_limits,
            "EfiVolume": lambda: (Record(dict(self.volume(r)), r.key) for r in self._efi_partitions()),
            "BitLocker": lambda: (Record(dict(state), {"volume": v}) for v, state in self.volumes.items()),
            "StorageController": lambda: self._controllers,
            "OwnPartition": self._list_own_partitions,
            "KeyEscrow": lambda: (
                Record(dict(self.escrow_record(v) or _NO_ESCROW), {"volume": v}) for v in self.volumes
            ),
            "EfiBackup": self._list_backups,
        }

    def on_restart(self) -> bool:
        """Count down the restarts for which BitLocker is suspended. After the last one it protects again."""
        if self.physics.installs:
            self._install()
        for state in self.volumes.values():
            if state["suspended"]:
                state["suspended"] -= 1
                if not state["suspended"]:
                    state |= {"suspended": None, "protection": "on"}
        return False

    def disk_of(self, state: Mapping[str, Any]) -> Record | None:
        """Return the disk of a partition. If two disks have the same GUID, return the last."""
        return next((disk for disk in reversed(self.disks) if disk.state["guid"] == state["disk"]), None)

    def find_recorded_partition(self, record: Mapping[str, Any]) -> str | None:
        """Return the GUID of a record's partition, if the partition exists as recorded; else None."""
        for guid, state in self.partitions.items():
            is_same = all(state[part] == record[part] for part in ("disk", "offset", "size"))
            if is_same and record["partition"] in (None, guid):
                return guid
        return None

    def _list_own_partitions(self) -> Iterator[Record]:
        for name, record in self.stored_records("partition"):
            guid = self.find_recorded_partition(record)
            parts = {part: record[part] for part in ("disk", "offset", "size", "label")}
            made = True if guid and record["complete"] else None
            state = {"made": made, "ours": guid is not None, "partition": guid or record["partition"], **parts}
            yield Record(state, {"name": name})

    def escrow_record(self, volume: str) -> Mapping[str, Json] | None:
        """Return the proof that a volume's recovery key is stored elsewhere, while the volume has that protector."""
        record = self.stored_record("escrow", volume.lower())
        protectors = [each["id"] for each in self.volumes[volume]["protectors"] if each["kind"] == "recovery-password"]
        return record if record and record["protector"] in protectors else None

    def _list_partitions(self) -> Iterator[Record]:
        for guid, state in self.partitions.items():
            if self.disk_of(state) is not None:
                yield Record(dict(state), {"partition": guid})

    def _list_resize_limits(self) -> Iterator[Record]:
        for record in self._list_partitions():
            if record.state["boot"]:
                timed_out = {name: {"unknown": _TIMEOUT_ERROR.as_json()} for name in ("smallest", "largest")}
                limits = self.limits(record)
                yield Record({**limits, **timed_out} if self.physics.looks_for_ever else limits, record.key)

    def limits(self, record: Record) -> Mapping[str, Json]:
        """Return the sizes to which a partition can be resized now, as in resource ResizeLimit."""
        limits = self._limits[record.key["partition"]]
        hibernates = any(each.state["hibernation"] for each in self.host.instances("FastStartup"))
        others = [each for each in limits["holders"] if each != "hibernation-file"]
        return {
            **limits,
            "largest": self.largest(record),
            "holders": [*others[:1], *(["hibernation-file"] if hibernates else []), *others[1:]],
        }

    def _efi_partitions(self) -> list[Record]:
        return [record for record in self._list_partitions() if record.state["type"] == EFI]

    def volume(self, record: Record) -> Mapping[str, Json]:
        """Return the file system of an EFI system partition, as in resource EfiVolume."""
        guid, size = record.key["partition"], record.state["size"]
        default: dict[str, Json] = {"free": size - 34 * MiB, "file_system": "FAT32"}
        return self._efi_volumes.get(guid, default)

    # ---- files of partitions, by path, regardless of case

    def _contents(self, guid: str) -> dict[str, tuple[str, bytes]]:
        if guid not in self._files and self.is_efi(guid):
            self._files[guid] = {
                path.casefold(): (path, encode_placeholder(**of)) for path, of in default_boot_files(self.physics.left)
            }
        return self._files.setdefault(guid, {})

    def is_efi(self, guid: str) -> bool:
        """Tell whether it is an EFI system partition: only the hash and size of its files are stored."""
        return bool(self.partitions[guid]["type"] == EFI)

    def files_on(self, guid: str) -> list[dict[str, Any]]:
        """Return the path, size and SHA-256 of each file on a partition."""
        files = [
            {"path": path, **(json.loads(data) if self.is_efi(guid) else describe_bytes(data))}
            for path, data in self._contents(guid).values()
        ]
        return sorted(files, key=lambda each: str(each["path"]))

    def read_file(self, guid: str, path: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
        return self._contents(guid).get(path.casefold(), (path, None))[1]

    def write_file(self, guid: str, path: str, content: bytes | None) -> None:
        """Write a file; None removes it."""
        assert self.is_writable(guid), "Windows refuses it: ERROR_WRITE_PROTECT"
        if content is None:
            self._contents(guid).pop(path.casefold(), None)
        else:
            self._contents(guid)[path.casefold()] = (path, content)

    def clear(self, guid: str) -> None:
        """Remove all files of a partition."""
        assert self.is_writable(guid), "Windows refuses it: ERROR_WRITE_PROTECT"
        self._files[guid] = {}

    def _install(self) -> None:
        """Change each EFI system partition as Ubuntu's installer does."""
        for record in self._efi_partitions():
            for path, sha in _INSTALLED_FILES:
                self.write_file(record.key["partition"], path, encode_placeholder(sha, 966_664))
            boot = self.host.part(FirmwarePart).boot
            if not any(each["path"] == _UBUNTU_ENTRY["path"] for each in boot["entries"]):
                boot["entries"] = [*boot["entries"], {**_UBUNTU_ENTRY, "partition": record.key["partition"]}]
                boot["order"] = [*boot["order"], _UBUNTU_ENTRY["entry"]]

    def efi_files(self) -> dict[str, Json]:
        """Return the files of all EFI system partitions."""
        return {each.key["partition"]: self.files_on(each.key["partition"]) for each in self._efi_partitions()}

    def _list_backups(self) -> Iterator[Record]:
        for record in self._efi_partitions():
            copy = self.efi_copy(record.key["partition"])
            changed, added = ([], []) if copy is None else self.compare_with_copy(record.key["partition"], copy)
            state = {"kept": copy is not None, "changed": changed, "added": added}
            yield Record(state, record.key)

    def efi_copy(self, guid: str) -> list[Mapping[str, Json]] | None:
        """Return the files in the host's copy of an EFI system partition, or None without a copy."""
        text = self.host.files.read(f"{efi_folder(guid)}\\files.json")
        return None if text is None else json.loads(text)["files"]

    def compare_with_copy(self, guid: str, copy: Sequence[Mapping[str, Json]]) -> tuple[list[str], list[str]]:
        """Return the files that differ from the copy, and new files that installers of Linux write."""
        files = self.files_on(guid)
        present_hashes = {each["path"].casefold(): each["sha256"] for each in files}
        copied_paths = {str(each["path"]).casefold() for each in copy}
        changed = [
            str(e["path"])
            for e in copy
            if present_hashes.get(str(e["path"]).casefold(), "gone") not in (None, e["sha256"])
        ]
        return changed, [
            path
            for path in (each["path"] for each in files)
            if path.casefold() not in copied_paths and _LINUX_BOOT_FILE.match(path)
        ]

    # ---- as resources that are set

    def changes(self) -> Mapping[str, Change]:
        own = ManagedKind("partition", self._make_partition, self._remove_partition_of)
        return {
            "Partition": self.set_size,
            "OwnPartition": partial(self.set_managed, own),
            "BitLocker": self.set_suspension,
            "KeyEscrow": self.set_escrow,
            "EfiBackup": self.set_backup,
        }

    def set_size(self, call: SetCall) -> None:
        """Resize the partition that Windows runs from."""
        call.check_data()
        size, guid = call.desired["size"], call.key["partition"]
        limits = self.limits(Record(self.partitions[guid], call.key))
        smallest, largest = limits["smallest"], limits["largest"]
        refuse_if(not smallest <= size <= largest, "SizeNotSupported", smallest=smallest, largest=largest, size=size)
        self.resize_partition(guid, size)

    def _make_partition(self, name: str, record: StoredRecord | None, desired: Mapping[str, Any]) -> None:
        new_record: StoredRecord = {part: desired[part] for part in ("disk", "offset", "size", "label")}
        new_record |= {"partition": record and record["partition"], "complete": False}
        guid = self.find_recorded_partition(record) if record else None
        if guid is None:
            disk, offset, size = new_record["disk"], new_record["offset"], new_record["size"]
            for other, state in self.partitions.items():
                overlaps = state["offset"] < offset + size and offset < state["offset"] + state["size"]
                refuse_if(state["disk"] == disk and overlaps, "NotFree", guid=other)
            self.store_record("partition", name, {**new_record, "partition": None})
            guid = self.new_partition(disk, offset, size)
        self.format_volume(guid, "NTFS" if name == LINUX_PARTITION else "FAT32", new_record["label"])
        self.set_partition(guid, no_letter=True, **({"type": _TYPES[name]} if name in _TYPES else {}))
        self.store_record("partition", name, {**new_record, "partition": guid, "complete": True})

    def _remove_partition_of(self, name: str, record: StoredRecord) -> None:
        guid = self.find_recorded_partition(record)
        if guid is not None:
            for entry in self._linux_entries(guid) if name == OWN_EFI else ():
                self.host.part(FirmwarePart).remove_entry(entry["entry"])
            self.unprotect(guid)
            self.remove_partition(guid)

    def protect(self, guid: str) -> None:
        """Make a partition read-only. Raises CmdletError if it is still writable then."""
        self.set_read_only(guid, read_only=True)
        self.remount(guid)
        refuse_if(self.is_writable(guid), "StillWritable")

    def unprotect(self, guid: str) -> None:
        if guid in self.read_only:
            self.set_read_only(guid, read_only=False)
            self.remount(guid)

    def set_suspension(self, call: SetCall) -> None:
        """Suspend BitLocker for a number of restarts, or resume it."""
        name, restarts = call.key["volume"], call.desired["suspended"]
        if restarts is None:
            self.resume_bitlocker(name)
            return
        if self.escrow_record(name) is None:
            raise refusal("NotEscrowed")
        self.suspend_bitlocker(name, restarts)

    def set_escrow(self, call: SetCall) -> None:
        """Record the proof that the recovery key is stored elsewhere, or remove it."""
        name, proof = call.key["volume"], call.desired["proof"]
        if proof == "none":
            self.store_record("escrow", name.lower(), None)
            return
        protectors = [each["id"] for each in self.volumes[name]["protectors"] if each["kind"] == "recovery-password"]
        if proof != "typed":
            self.backup_key(proof)
        elif not (re.fullmatch("[0-9]{6}", call.secret) and self.physics.recovery_password.endswith(call.secret)):
            raise refusal("WrongDigits")
        proof_record = {"proof": proof, "last_group": call.desired.get("last_group"), "protector": protectors[0]}
        self.store_record("escrow", name.lower(), proof_record)

    def set_backup(self, call: SetCall) -> None:
        """Copy the files of an EFI system partition, or restore them from the copy."""
        call.check_data()
        guid, files = call.key["partition"], self.host.files
        folder = efi_folder(guid)
        if call.desired["kept"]:
            files.make_folders(FOLDER, folder)
            copied = [each for each in self.files_on(guid) if each["sha256"]]
            for each in copied:
                files.write(f"{folder}\\{each['sha256']}", self.read_file(guid, each["path"]))
            entries_of_files = [{"path": each["path"], "sha256": each["sha256"]} for each in copied]
            entries = [each["path"] for each in self._linux_entries(guid)]
            files.write(f"{folder}\\files.json", json.dumps({"files": entries_of_files, "entries": entries}).encode())
            return
        manifest = json.loads(files.read(f"{folder}\\files.json") or '{"files": []}')
        for entry in self._linux_entries(guid) if "entries" in manifest else ():
            if entry["path"] not in manifest["entries"]:
                self.host.part(FirmwarePart).remove_entry(entry["entry"])
        changed, added = self.compare_with_copy(guid, manifest["files"])
        for file in (each for each in manifest["files"] if each["path"] in changed):
            self.write_file(guid, str(file["path"]), files.read(f"{folder}\\{file['sha256']}"))
        for path in added:
            self.write_file(guid, path, None)
        files.remove_folder(folder)

    def _linux_entries(self, guid: str) -> list[Any]:
        firmware = self.host.part(FirmwarePart)
        entries: list[Any] = firmware.boot["entries"] if firmware.kind == "uefi" else []
        return [e for e in entries if e["partition"] == guid and _LINUX_LOADER.search(str(e["path"]))]

    # ---- cmdlets that change something

    @as_cmdlet("Resize-Partition", "Confirm", guid="InputObject[].DeviceID", size="Size")
    def resize_partition(self, guid: str, size: int) -> None:
        """Resize a partition. Raises CmdletError if that stops early, at a size in between."""
        if self.physics.stops_at is not None and size < self.physics.stops_at:
            self._resize(guid, self.physics.stops_at)
            raise self.host.windows_error("no-capacity", "Resize-Partition")
        self._resize(guid, size)

    def _resize(self, guid: str, size: int) -> None:
        # Free space changes with the size; the limits do not.
        self._limits[guid]["free"] += size - self.partitions[guid]["size"]
        self.partitions[guid]["size"] = size

    def largest(self, record: Record) -> int:
        """Return the largest size of a partition, which ends at the next partition or the end of the disk."""
        start, disk = record.state["offset"], self.disk_of(record.state)
        offsets = [each["offset"] for each in self.partitions.values() if each["disk"] == record.state["disk"]]
        end = min([each for each in offsets if each > start], default=None)
        disk_end = int(disk.state["size"]) - MiB if disk else start + record.state["size"]
        return int((disk_end if end is None else end) - start) // MiB * MiB

    @as_cmdlet("New-Partition")
    def new_partition(self, disk: str, offset: int, size: int) -> str:
        """Make a partition and return its GUID."""
        on_disk = [each for each in self.partitions.values() if each["disk"] == disk]
        guid = make_guid(disk, offset, len(self.partitions))
        number = max((each["number"] for each in on_disk), default=0) + 1
        flags = dict.fromkeys(("boot", "system", "hidden", "no_letter"), False)
        position = {"disk": disk, "number": number, "offset": offset + MiB * self.physics.misplaces, "size": size}
        self.partitions[guid] = {**position, "type": BASIC_DATA, "letter": None, **flags}
        return guid

    @as_cmdlet("Set-Partition")
    def set_partition(self, /, guid: str, **changed: Json) -> None:
        """Set the type of a partition, and whether it gets a drive letter."""
        self.partitions[guid] |= changed

    @as_cmdlet("Set-Partition")
    def set_read_only(self, guid: str, *, read_only: bool) -> None:
        """Set the attribute that makes a volume read-only at its next mount."""
        if read_only:
            for path in self.physics.meddles:
                self.write_file(guid, path, b"another")
            self.read_only.add(guid)
        else:
            self.read_only.discard(guid)

    def remount(self, guid: str) -> None:
        """Mount a volume again, which applies its read-only attribute."""
        is_read_only = guid in self.read_only and not self.physics.stays_writable
        (self._mounted_read_only.add if is_read_only else self._mounted_read_only.discard)(guid)

    def is_writable(self, guid: str) -> bool:
        """Tell whether the volume is mounted as writable."""
        return guid not in self._mounted_read_only

    @as_cmdlet("Format-Volume")
    def format_volume(self, guid: str, file_system: str, label: str) -> None:
        """Format a volume, and remove its contents."""
        self.labels[guid] = (file_system, label)
        self.clear(guid)
        self._efi_volumes[guid] = {"free": self.partitions[guid]["size"] - MiB, "file_system": file_system}

    @as_cmdlet("Remove-Partition", "Confirm", guid="InputObject[].DeviceID")
    def remove_partition(self, guid: str) -> None:
        """Remove a partition with its contents."""
        assert guid not in self.read_only, "whether Windows removes a read-only partition is unknown"
        self.clear(guid)
        for table in (self.partitions, self.labels, self._efi_volumes, self._files):
            table.pop(guid, None)

    @as_cmdlet("Suspend-BitLocker", "Confirm", volume="MountPoint[]", restarts="RebootCount")
    def suspend_bitlocker(self, volume: str, restarts: int) -> None:
        """Suspend protection; the volume stays encrypted."""
        self.volumes[volume] |= {"protection": "off", "suspended": restarts}

    @as_cmdlet("Resume-BitLocker", "Confirm", volume="MountPoint[]")
    def resume_bitlocker(self, volume: str) -> None:
        """Protect the volume again."""
        self.volumes[volume] |= {"protection": "on", "suspended": None}

    def backup_key(self, directory: str) -> None:
        """Store the recovery key in a directory. Raises CmdletError if the directory does not store it."""
        with self.host.changing(_BACKUPS[directory]):
            if directory not in self.physics.keeps_keys:
                raise self.host.windows_error("no-directory", _BACKUPS[directory])

    # ---- CIM

    def _objects_if_held(self, holder: str, object_: WindowsObject) -> list[WindowsObject]:
        return [object_] if any(holder in record.state["holders"] for record in self._list_resize_limits()) else []

    def _processes(self) -> Iterator[WindowsObject]:
        yield windows_object("Win32_Process", Name="svchost.exe")
        yield from self._objects_if_held("wsl-disks", windows_object("Win32_Process", Name="vmmemWSL"))
