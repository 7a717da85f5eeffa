"""Disks of a simulated host: partitions, how far they shrink, what is on the EFI partition, BitLocker, controllers."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

from pydantic import Field

from winhost.core.answers import Json, Record
from winhost.lab.physics.disk_layouts import (
    boot_files,
    controllers,
    encryption,
    limits,
    made_guid,
    partitions_of,
    whole_disk,
)
from winhost.lab.physics.firmware import FirmwarePart
from winhost.lab.physics.lab_section import part_physics
from winhost.lab.physics.parts import Change, Host, ManagedKind, Part, SetCall, StoredRecord, as_cmdlet
from winhost.lab.physics.windows_errors import (
    WindowsObject,
    agent_error,
    refusal,
    refuse,
    windows_object,
)
from winhost.lab.physics.windows_files import FOLDER
from winhost.model.units import MiB
from winhost.model.written import Closed
from winhost.resources.windows.disks import BASIC_DATA, EFI, LINUX, LINUX_PARTITION, OWN_EFI

Listing = Mapping[str, Callable[[], Iterable[Record]]]
_LATE = agent_error("NotInTime", "OperationTimeout", "Windows did not say within 120 s how far the volume can shrink.")
_NO_PROOF = {"proof": "none", "last_group": None, "protector": None}
_OF_LINUX = re.compile(r"EFI\\(ubuntu|debian)\\|EFI\\BOOT\\(fb|mm|grub|shim)x64\.efi\Z", re.IGNORECASE)
_LINUX_LOADER = re.compile(r"\\EFI\\(ubuntu|debian)\\", re.IGNORECASE)
_TYPES = {LINUX_PARTITION: LINUX, OWN_EFI: EFI}
_BACKUPS = {"active-directory": "Backup-BitLockerKeyProtector", "entra": "BackupToAAD-BitLockerKeyProtector"}
_INSTALLED = (
    ("EFI\\Boot\\bootx64.efi", "d1" * 32),
    ("EFI\\BOOT\\fbx64.efi", "d2" * 32),
    ("EFI\\ubuntu\\grubx64.efi", "d3" * 32),
)

_ENTRY: Mapping[str, Any] = {
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
        description="of each volume that has one: what no answer may ever hold",
    )
    stops_at: int | None = Field(default=None, description="bytes at which a shrink stops early, and fails")
    installs: bool = Field(
        default=False, description="a restart leaves Ubuntu's boot loader on the EFI partition, and its entry"
    )
    left: tuple[str, ...] = Field(default=(), description="files that others left on the EFI partitions")
    looks_for_ever: bool = Field(default=False, description="how far a volume can shrink, Windows never says")
    misplaces: bool = Field(default=False, description="a new partition begins 1 MiB behind where it was asked for")
    meddles: tuple[str, ...] = Field(
        default=(), description="files that somebody rewrites on a partition before it becomes read-only"
    )
    stays_writable: bool = Field(default=False, description="a partition that becomes read-only can be written to")
    keeps_keys: tuple[str, ...] = Field(
        default=(), description="what takes recovery keys: active-directory, entra; left out, neither"
    )


def stands_for(sha256: str | None, size: int | None) -> bytes:
    """Encode the hash and the size of a file whose content nobody has."""
    return json.dumps({"sha256": sha256, "size": size}).encode()


def of_bytes(data: bytes) -> dict[str, Json]:
    return {"size": len(data), "sha256": sha256(data).hexdigest()}


def efi_folder(guid: str) -> str:
    """The host's folder for a copy of an EFI system partition."""
    return f"{FOLDER}\\esp-{guid}"


class Disks(Part):
    """The contents of a host's disks, by the GUIDs of their partitions."""

    administrator_resources = ("ResizeLimit", "EfiVolume", "EfiBackup")
    administrator_settable = ("Partition", "OwnPartition")

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.physics = DisksPhysics.model_validate(host.lab.found.get("disks", {}))
        self.disks = [whole_disk(record, number) for number, record in enumerate(host.initial.get("Disk", ()))]
        laid_out: Iterable[Record] | None = host.initial.get("Partition")
        if laid_out is None:  # then as Windows does it
            after_c = iter("DEFGHIJKLMNOPQRSTUVW")
            laid_out = [each for disk in self.disks for each in partitions_of(disk, after_c)]
        self.partitions = {r.key["partition"]: dict(r.state) for r in laid_out}
        told = {r.key["partition"]: r.state for r in host.initial.get("ResizeLimit", ())}
        self._limits = {guid: dict(told.get(guid) or limits(state)) for guid, state in self.partitions.items()}
        self.labels: dict[str, tuple[str, str]] = {}
        self.read_only: set[str] = set()  # by the attribute of the table
        self._mounted_read_only: set[str] = set()
        self._files: dict[str, dict[str, tuple[str, bytes]]] = {}
        self._formatted = {r.key["partition"]: dict(r.state) for r in host.initial.get("EfiVolume", ())}
        self.volumes = {r.key["volume"]: dict(r.state) for r in map(encryption, host.initial.get("BitLocker", ()))}
        self._controllers = host.initial.get("StorageController", tuple(controllers(self.disks)))
        paging = windows_object("Win32_PageFileUsage", Name="C:\\pagefile.sys")
        copy = windows_object("Win32_ShadowCopy", ID="{0F1E2D3C-4B5A-4697-8877-665544332211}")
        host.cim_classes["Win32_PageFileUsage"] = partial(self._if_held, "page-file", paging)
        host.cim_classes["Win32_Process"] = self._processes
        host.cim_classes["Win32_ShadowCopy"] = partial(self._if_held, "shadow-copies", copy)
        host.cim_classes["Win32_EncryptableVolume"] = self._encryptable

    def _encryptable(self) -> list[WindowsObject]:
        return [
            windows_object("Win32_EncryptableVolume", DeviceID=volume, DriveLetter=volume) for volume in self.volumes
        ]

    def records(self) -> Listing:
        return {
            "Disk": lambda: self.disks,
            "Partition": self._listed,
            "ResizeLimit": self._resize_limits,
            "EfiVolume": lambda: (Record(dict(self.volume(r)), r.key) for r in self._efi_partitions()),
            "BitLocker": lambda: (Record(dict(state), {"volume": v}) for v, state in self.volumes.items()),
            "StorageController": lambda: self._controllers,
            "OwnPartition": self._own_partitions,
            "KeyEscrow": lambda: (Record(dict(self.escrow(v) or _NO_PROOF), {"volume": v}) for v in self.volumes),
            "EfiBackup": self._backups,
        }

    def on_restart(self) -> bool:
        """Count down the restarts for which BitLocker is suspended; after the last it protects again."""
        if self.physics.installs:
            self._install()
        for state in self.volumes.values():
            if state["suspended"]:
                state["suspended"] -= 1
                if not state["suspended"]:
                    state |= {"suspended": None, "protection": "on"}
        return False

    def disk_of(self, state: Mapping[str, Any]) -> Record | None:
        """The disk that a partition is on; of two disks with one GUID, the last."""
        return next((disk for disk in reversed(self.disks) if disk.state["guid"] == state["disk"]), None)

    def own_partition(self, record: Mapping[str, Any]) -> str | None:
        """The GUID of the partition of a record, if that partition is as recorded."""
        for guid, state in self.partitions.items():
            there = all(state[part] == record[part] for part in ("disk", "offset", "size"))
            if there and record["partition"] in (None, guid):
                return guid
        return None

    def _own_partitions(self) -> Iterator[Record]:
        for name, record in self.stored_records("partition"):
            found = self.own_partition(record)
            parts = {part: record[part] for part in ("disk", "offset", "size", "label")}
            made = True if found and record["complete"] else None
            state = {"made": made, "ours": found is not None, "partition": found or record["partition"], **parts}
            yield Record(state, {"name": name})

    def escrow(self, volume: str) -> Mapping[str, Json] | None:
        """The proof that the recovery key of a volume is kept, as long as the volume has that protector."""
        record = self.stored_record("escrow", volume.lower())
        known = [each["id"] for each in self.volumes[volume]["protectors"] if each["kind"] == "recovery-password"]
        return record if record and record["protector"] in known else None

    def _listed(self) -> Iterator[Record]:
        for guid, state in self.partitions.items():
            if self.disk_of(state) is not None:
                yield Record(dict(state), {"partition": guid})

    def _resize_limits(self) -> Iterator[Record]:
        for record in self._listed():
            if record.state["boot"]:
                late = {name: {"unknown": _LATE.as_json()} for name in ("smallest", "largest")}
                known = self.limits(record)
                yield Record({**known, **late} if self.physics.looks_for_ever else known, record.key)

    def limits(self, record: Record) -> Mapping[str, Json]:
        """The sizes to which a partition can be resized now, in the form of resource ResizeLimit."""
        found = self._limits[record.key["partition"]]
        hibernates = any(each.state["hibernation"] for each in self.host.instances("FastStartup"))
        held = [each for each in found["holders"] if each != "hibernation-file"]
        return {
            **found,
            "largest": self.largest(record),
            "holders": [*held[:1], *(["hibernation-file"] if hibernates else []), *held[1:]],
        }

    def _efi_partitions(self) -> list[Record]:
        return [record for record in self._listed() if record.state["type"] == EFI]

    def volume(self, record: Record) -> Mapping[str, Json]:
        """The file system on an EFI system partition: the state of resource EfiVolume."""
        guid, size = record.key["partition"], record.state["size"]
        usual: dict[str, Json] = {"free": size - 34 * MiB, "file_system": "FAT32"}
        return self._formatted.get(guid, usual)

    # ---- files of partitions, by their paths, whose case does not matter

    def _contents(self, guid: str) -> dict[str, tuple[str, bytes]]:
        if guid not in self._files and self.is_efi(guid):
            self._files[guid] = {
                path.casefold(): (path, stands_for(**of)) for path, of in boot_files(self.physics.left)
            }
        return self._files.setdefault(guid, {})

    def is_efi(self, guid: str) -> bool:
        """Tell whether it is an EFI system partition, of whose files only hash and size are known."""
        return bool(self.partitions[guid]["type"] == EFI)

    def files_on(self, guid: str) -> list[dict[str, Any]]:
        """The path, size and sha256 of each file on a partition."""
        told = [
            {"path": path, **(json.loads(data) if self.is_efi(guid) else of_bytes(data))}
            for path, data in self._contents(guid).values()
        ]
        return sorted(told, key=lambda each: str(each["path"]))

    def file(self, guid: str, path: str) -> bytes | None:
        """The content of a file, or None where there is none."""
        return self._contents(guid).get(path.casefold(), (path, None))[1]

    def put_file(self, guid: str, path: str, content: bytes | None) -> None:
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
            for path, sha in _INSTALLED:
                self.put_file(record.key["partition"], path, stands_for(sha, 966_664))
            boot = self.host.part(FirmwarePart).boot
            if not any(each["path"] == _ENTRY["path"] for each in boot["entries"]):
                boot["entries"] = [*boot["entries"], {**_ENTRY, "partition": record.key["partition"]}]
                boot["order"] = [*boot["order"], _ENTRY["entry"]]

    def every_efi_file(self) -> dict[str, Json]:
        """The files of all EFI system partitions."""
        return {each.key["partition"]: self.files_on(each.key["partition"]) for each in self._efi_partitions()}

    def _backups(self) -> Iterator[Record]:
        for record in self._efi_partitions():
            copy = self.efi_copy(record.key["partition"])
            changed, added = ([], []) if copy is None else self.since_copy(record.key["partition"], copy)
            state = {"kept": copy is not None, "changed": changed, "added": added}
            yield Record(state, record.key)

    def efi_copy(self, guid: str) -> list[Mapping[str, Json]] | None:
        """The files of the host's copy of an EFI system partition, or None where it has no copy."""
        text = self.host.files.read(f"{efi_folder(guid)}\\files.json")
        return None if text is None else json.loads(text)["files"]

    def since_copy(self, guid: str, copy: Sequence[Mapping[str, Json]]) -> tuple[list[str], list[str]]:
        """Return the copied files that have changed since, and new files that installers of Linux write."""
        files = self.files_on(guid)
        now = {each["path"].casefold(): each["sha256"] for each in files}
        copied_paths = {str(each["path"]).casefold() for each in copy}
        changed = [
            str(e["path"]) for e in copy if now.get(str(e["path"]).casefold(), "gone") not in (None, e["sha256"])
        ]
        return changed, [
            path
            for path in (each["path"] for each in files)
            if path.casefold() not in copied_paths and _OF_LINUX.match(path)
        ]

    # ---- as resources that are set

    def changes(self) -> Mapping[str, Change]:
        own = ManagedKind("partition", self._make_own, self._remove_own)
        return {
            "Partition": self.set_size,
            "OwnPartition": partial(self.set_managed, own),
            "BitLocker": self.set_suspension,
            "KeyEscrow": self.set_escrow,
            "EfiBackup": self.set_backup,
        }

    def set_size(self, asked: SetCall) -> None:
        """Resize the partition that Windows runs from."""
        asked.check_data()
        size, guid = asked.desired["size"], asked.key["partition"]
        known = self.limits(Record(self.partitions[guid], asked.key))
        smallest, largest = known["smallest"], known["largest"]
        refuse(not smallest <= size <= largest, "SizeNotSupported", smallest=smallest, largest=largest, size=size)
        self.resize_partition(guid, size)

    def _make_own(self, name: str, record: StoredRecord | None, desired: Mapping[str, Any]) -> None:
        mine: StoredRecord = {part: desired[part] for part in ("disk", "offset", "size", "label")}
        mine |= {"partition": record and record["partition"], "complete": False}
        guid = self.own_partition(record) if record else None
        if guid is None:
            disk, offset, size = mine["disk"], mine["offset"], mine["size"]
            for other, state in self.partitions.items():
                reaches = state["offset"] < offset + size and offset < state["offset"] + state["size"]
                refuse(state["disk"] == disk and reaches, "NotFree", guid=other)
            self.store_record("partition", name, {**mine, "partition": None})
            guid = self.new_partition(disk, offset, size)
        self.format_volume(guid, "NTFS" if name == LINUX_PARTITION else "FAT32", mine["label"])
        self.set_partition(guid, no_letter=True, **({"type": _TYPES[name]} if name in _TYPES else {}))
        self.store_record("partition", name, {**mine, "partition": guid, "complete": True})

    def _remove_own(self, name: str, record: StoredRecord) -> None:
        found = self.own_partition(record)
        if found is not None:
            for entry in self._linux_entries(found) if name == OWN_EFI else ():
                self.host.part(FirmwarePart).remove_entry(entry["entry"])
            self.unprotect(found)
            self.remove_partition(found)

    def protect(self, guid: str) -> None:
        """Make a partition read-only. Raises CmdletError where it can still be written to."""
        self.set_read_only(guid, read_only=True)
        self.mount_anew(guid)
        refuse(self.is_writable(guid), "StillWritable")

    def unprotect(self, guid: str) -> None:
        if guid in self.read_only:
            self.set_read_only(guid, read_only=False)
            self.mount_anew(guid)

    def set_suspension(self, asked: SetCall) -> None:
        """Suspend BitLocker for a number of restarts, or resume it."""
        name, restarts = asked.key["volume"], asked.desired["suspended"]
        if restarts is None:
            self.resume_bitlocker(name)
            return
        if self.escrow(name) is None:
            raise refusal("NotEscrowed")
        self.suspend_bitlocker(name, restarts)

    def set_escrow(self, asked: SetCall) -> None:
        """Note the proof that the recovery key is kept elsewhere, or forget it."""
        name, proof = asked.key["volume"], asked.desired["proof"]
        if proof == "none":
            self.store_record("escrow", name.lower(), None)
            return
        known = [each["id"] for each in self.volumes[name]["protectors"] if each["kind"] == "recovery-password"]
        if proof != "typed":
            self.backup_key(proof)
        elif not (re.fullmatch("[0-9]{6}", asked.secret) and self.physics.recovery_password.endswith(asked.secret)):
            raise refusal("WrongDigits")
        proof_record = {"proof": proof, "last_group": asked.desired.get("last_group"), "protector": known[0]}
        self.store_record("escrow", name.lower(), proof_record)

    def set_backup(self, asked: SetCall) -> None:
        """Copy the files of an EFI system partition, or restore them from the copy."""
        asked.check_data()
        guid, files = asked.key["partition"], self.host.files
        folder = efi_folder(guid)
        if asked.desired["kept"]:
            files.make_folders(FOLDER, folder)
            whole = [each for each in self.files_on(guid) if each["sha256"]]
            for each in whole:
                files.write(f"{folder}\\{each['sha256']}", self.file(guid, each["path"]))
            listed = [{"path": each["path"], "sha256": each["sha256"]} for each in whole]
            entries = [each["path"] for each in self._linux_entries(guid)]
            files.write(f"{folder}\\files.json", json.dumps({"files": listed, "entries": entries}).encode())
            return
        manifest = json.loads(files.read(f"{folder}\\files.json") or '{"files": []}')
        for entry in self._linux_entries(guid) if "entries" in manifest else ():
            if entry["path"] not in manifest["entries"]:
                self.host.part(FirmwarePart).remove_entry(entry["entry"])
        changed, added = self.since_copy(guid, manifest["files"])
        for file in (each for each in manifest["files"] if each["path"] in changed):
            self.put_file(guid, str(file["path"]), files.read(f"{folder}\\{file['sha256']}"))
        for path in added:
            self.put_file(guid, path, None)
        files.remove_folder(folder)

    def _linux_entries(self, guid: str) -> list[Any]:
        firmware = self.host.part(FirmwarePart)
        entries: list[Any] = firmware.boot["entries"] if firmware.kind == "uefi" else []
        return [e for e in entries if e["partition"] == guid and _LINUX_LOADER.search(str(e["path"]))]

    # ---- cmdlets that change something

    @as_cmdlet("Resize-Partition", "Confirm", guid="InputObject[].DeviceID", size="Size")
    def resize_partition(self, guid: str, size: int) -> None:
        """Resize a partition. Raises CmdletError where that stops early, at a size in between."""
        if self.physics.stops_at is not None and size < self.physics.stops_at:
            self._resize(guid, self.physics.stops_at)
            raise self.host.fail("no-capacity", "Resize-Partition")
        self._resize(guid, size)

    def _resize(self, guid: str, size: int) -> None:
        # Free space changes with the size; what cannot be moved stays where it is.
        self._limits[guid]["free"] += size - self.partitions[guid]["size"]
        self.partitions[guid]["size"] = size

    def largest(self, record: Record) -> int:
        """The largest size of a partition: up to the next one, or the end of the disk."""
        begin, disk = record.state["offset"], self.disk_of(record.state)
        behind = [each["offset"] for each in self.partitions.values() if each["disk"] == record.state["disk"]]
        end = min([each for each in behind if each > begin], default=None)
        whole = int(disk.state["size"]) - MiB if disk else begin + record.state["size"]
        return int((whole if end is None else end) - begin) // MiB * MiB

    @as_cmdlet("New-Partition")
    def new_partition(self, disk: str, offset: int, size: int) -> str:
        """Make a partition and return its GUID."""
        on_disk = [each for each in self.partitions.values() if each["disk"] == disk]
        guid = made_guid(disk, offset, len(self.partitions))
        number = max((each["number"] for each in on_disk), default=0) + 1
        flags = dict.fromkeys(("boot", "system", "hidden", "no_letter"), False)
        where = {"disk": disk, "number": number, "offset": offset + MiB * self.physics.misplaces, "size": size}
        self.partitions[guid] = {**where, "type": BASIC_DATA, "letter": None, **flags}
        return guid

    @as_cmdlet("Set-Partition")
    def set_partition(self, /, guid: str, **changed: Json) -> None:
        """Set the type of a partition, and whether it gets a drive letter."""
        self.partitions[guid] |= changed

    @as_cmdlet("Set-Partition")
    def set_read_only(self, guid: str, *, read_only: bool) -> None:
        """Set the attribute that makes a volume read-only from its next mount on."""
        if read_only:
            for path in self.physics.meddles:
                self.put_file(guid, path, b"another")
            self.read_only.add(guid)
        else:
            self.read_only.discard(guid)

    def mount_anew(self, guid: str) -> None:
        """Dismount a volume, and mount it again with its present attribute."""
        heeded = guid in self.read_only and not self.physics.stays_writable
        (self._mounted_read_only.add if heeded else self._mounted_read_only.discard)(guid)

    def is_writable(self, guid: str) -> bool:
        """Tell whether the volume is mounted writable."""
        return guid not in self._mounted_read_only

    @as_cmdlet("Format-Volume")
    def format_volume(self, guid: str, file_system: str, label: str) -> None:
        """Format a volume, which loses its contents."""
        self.labels[guid] = (file_system, label)
        self.clear(guid)
        self._formatted[guid] = {"free": self.partitions[guid]["size"] - MiB, "file_system": file_system}

    @as_cmdlet("Remove-Partition", "Confirm", guid="InputObject[].DeviceID")
    def remove_partition(self, guid: str) -> None:
        """Remove a partition with its contents."""
        assert guid not in self.read_only, "nobody knows whether Windows takes it away"
        self.clear(guid)
        for known in (self.partitions, self.labels, self._formatted, self._files):
            known.pop(guid, None)

    @as_cmdlet("Suspend-BitLocker", "Confirm", volume="MountPoint[]", restarts="RebootCount")
    def suspend_bitlocker(self, volume: str, restarts: int) -> None:
        """Suspend protection; the volume stays encrypted."""
        self.volumes[volume] |= {"protection": "off", "suspended": restarts}

    @as_cmdlet("Resume-BitLocker", "Confirm", volume="MountPoint[]")
    def resume_bitlocker(self, volume: str) -> None:
        """Protect the volume again."""
        self.volumes[volume] |= {"protection": "on", "suspended": None}

    def backup_key(self, where: str) -> None:
        """Store the recovery key in a directory. Raises CmdletError where there is none that takes it."""
        with self.host.changing(_BACKUPS[where]):
            if where not in self.physics.keeps_keys:
                raise self.host.fail("no-directory", _BACKUPS[where])

    # ---- CIM

    def _if_held(self, word: str, found: WindowsObject) -> list[WindowsObject]:
        return [found] if any(word in record.state["holders"] for record in self._resize_limits()) else []

    def _processes(self) -> Iterator[WindowsObject]:
        yield windows_object("Win32_Process", Name="svchost.exe")
        yield from self._if_held("wsl-disks", windows_object("Win32_Process", Name="vmmemWSL"))
