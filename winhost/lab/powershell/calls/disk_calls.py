"""Cmdlets of disks, partitions, volumes and BitLocker, and the helpers that read firmware and volumes without them."""

import base64
import json
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from winhost.core.answers import Record
from winhost.lab.physics.found.disks import Disks
from winhost.lab.physics.found.firmware import GLOBAL, FirmwarePart
from winhost.lab.physics.found.installer import InstallerPart
from winhost.lab.physics.windows_objects import WindowsObject, of_type
from winhost.lab.powershell.calls.cmdlet_process import BoundParameters, CmdletProcess, answers, braced, windows_word
from winhost.resources.windows.partition import BASIC_DATA, EFI

_VOLUME = "\\\\?\\Volume{"
_IMAGE = "0d15c000-0000-4000-8000-000000000000"  # of the volume of a mounted image


def _disks(process: CmdletProcess) -> Disks:
    return process.machine.part(Disks)


def _firmware(process: CmdletProcess) -> FirmwarePart:
    return process.machine.part(FirmwarePart)


def _partition(disks: Disks, record: Record) -> WindowsObject:
    state, disk = record.state, disks.disk_of(record.state)
    return of_type(
        "MSFT_Partition",
        DeviceID=record.key["partition"],
        DiskNumber=disk.state["number"] if disk else None,
        PartitionNumber=state["number"],
        DriveLetter=state["letter"] or "\0",
        Guid=braced(record.key["partition"]),
        GptType=braced(state["type"]),
        Offset=state["offset"],
        Size=state["size"],
        IsBoot=state["boot"],
        IsSystem=state["system"],
        IsHidden=state["hidden"],
        IsReadOnly=record.key["partition"] in disks.read_only,
        NoDefaultDriveLetter=state["no_letter"],
    )


def _asked(process: CmdletProcess, given: Any) -> Record:
    return next(r for r in process.machine.instances("Partition") if r.key["partition"] == given["DeviceID"])


@answers("Get-Partition")
def _partitions(process: CmdletProcess, _bound: BoundParameters) -> Iterable[Any]:
    return [_partition(_disks(process), record) for record in process.machine.instances("Partition")]


@answers("Get-PartitionSupportedSize", "InputObject", "AsJob")
def _supported(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    if not bound.get("AsJob"):
        return [_limits(process, given) for given in bound["InputObject"]]
    process.jobs += 1
    state = "Running" if _disks(process).physics.looks_for_ever else "Completed"
    return [of_type("StorageJob", DeviceID=bound["InputObject"][0]["DeviceID"], State=state)]


@answers("Receive-Job", "Job")
def _received(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    return [_limits(process, given) for given in bound["Job"]]


def _limits(process: CmdletProcess, given: Any) -> WindowsObject:
    limits = _disks(process).limits(_asked(process, given))
    return of_type("MSFT_PartitionSupportedSize", SizeMin=limits["smallest"], SizeMax=limits["largest"])


@answers("Get-Volume", "FilePath", "Partition", "DiskImage")
def _volume(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    if "DiskImage" in bound:
        return [of_type("MSFT_Volume", Path=f"{_VOLUME}{_IMAGE}}}\\", FileSystem="UDF")]
    if "Partition" not in bound:
        return [of_type("MSFT_Volume", SizeRemaining=process.machine.lab.new_vms.free)]
    disks, record = _disks(process), _asked(process, bound["Partition"])
    path = f"\\\\?\\Volume{braced(record.key['partition']).lower()}\\"
    if record.state["boot"]:
        limits = disks.limits(record)
        health = windows_word(limits["health"])
        return [of_type("MSFT_Volume", SizeRemaining=limits["free"], Path=path, FileSystem="NTFS", HealthStatus=health)]
    if record.state["type"] != EFI:
        return [of_type("MSFT_Volume", Path=path, FileSystem="FAT32")]
    found = disks.efi_files(record)
    return [of_type("MSFT_Volume", SizeRemaining=found["free"], Path=path, FileSystem=found["file_system"])]


@answers("Get-WinEvent", "FilterHashtable", "MaxEvents")
def _events(process: CmdletProcess, _bound: BoundParameters) -> Iterable[Any]:
    disks = _disks(process)
    held = [disks.limits(r)["last_held_by"] for r in process.machine.instances("Partition") if r.state["boot"]]
    for file in filter(None, held[:1]):
        properties = [of_type("EventProperty", Value=each) for each in ("(C:)", file, 4)]
        return [of_type("EventRecord", Id=259, Properties=properties)]
    raise process.machine.fail("no-events", "Get-WinEvent")


@answers("Get-BitLockerVolume")
def _volumes(process: CmdletProcess, _bound: BoundParameters) -> Iterable[Any]:
    password = _disks(process).physics.recovery_password
    for record in process.machine.instances("BitLocker"):
        protectors = [
            of_type(
                "BitLockerVolumeKeyProtector",
                KeyProtectorId=braced(each["id"]),
                KeyProtectorType=windows_word(each["kind"]),
                RecoveryPassword=password if each["kind"] == "recovery-password" else None,
            )
            for each in record.state["protectors"]
        ]
        yield of_type(
            "BitLockerVolume",
            MountPoint=record.key["volume"],
            ProtectionStatus=windows_word(record.state["protection"]),
            VolumeType=windows_word(record.state["volume_type"]),
            VolumeStatus=windows_word(record.state["conversion"]),
            EncryptionPercentage=record.state["percentage"],
            KeyProtector=protectors,
        )


@answers("Invoke-CimMethod", "InputObject", "MethodName", "Arguments")
def _method(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    volume = _disks(process).volumes[bound["InputObject"]["DeviceID"]]
    if bound["MethodName"] == "GetSuspendCount":
        return [of_type("SuspendCount", SuspendCount=volume["suspended"] or 0)]
    return [of_type("PlatformValidationProfile", PlatformValidationProfile=volume["pcrs"])]


# ---- what changes something


@answers("New-Partition", "DiskNumber", "Offset", "Size", "GptType")
def _new(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    disks = _disks(process)
    assert bound["GptType"].strip("{}") == BASIC_DATA
    disk = next(each for each in disks.disks if [each.state["number"]] == list(bound["DiskNumber"]))
    guid = disks.new_partition(str(disk.state["guid"]), bound["Offset"], bound["Size"])
    return [_partition(disks, Record(disks.partitions[guid], {"partition": guid}))]


@answers("Set-Partition", "InputObject", "GptType", "NoDefaultDriveLetter", "IsReadOnly")
def _set(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    changed = {"type": bound["GptType"].strip("{}").lower()} if "GptType" in bound else {}
    hidden = {"no_letter": bound["NoDefaultDriveLetter"]} if "NoDefaultDriveLetter" in bound else {}
    for given in bound["InputObject"]:
        if "IsReadOnly" in bound:
            _disks(process).set_read_only(given["DeviceID"], read_only=bound["IsReadOnly"])
        else:
            _disks(process).set_partition(given["DeviceID"], **changed, **hidden)
    return ()


@answers("Format-Volume", "Partition", "FileSystem", "NewFileSystemLabel", "Confirm")
def _format(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    guid = bound["Partition"]["DeviceID"]
    _disks(process).format_volume(guid, bound["FileSystem"], bound["NewFileSystemLabel"])
    return [of_type("MSFT_Volume", FileSystem=bound["FileSystem"])]


def _backup(cmdlet: str, where: str) -> None:
    def answer(process: CmdletProcess, _: BoundParameters) -> Iterable[Any]:
        _disks(process).backup_key(where, cmdlet)
        return ()

    answers(cmdlet, "MountPoint", "KeyProtectorId", "Confirm")(answer)


_backup("Backup-BitLockerKeyProtector", "active-directory")
_backup("BackupToAAD-BitLockerKeyProtector", "entra")


# ---- helpers of the agent


@answers("Write-WinhostFirmwareVariable", "Name", "Space", "Bytes")
def _write_variable(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    assert bound["Space"] == GLOBAL
    _firmware(process).write(bound["Name"], base64.b64decode(bound["Bytes"]))
    return ()


@answers("Get-SecureBootUEFI", "Name")
def _secure_variable(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    found = _firmware(process).secure_variable(bound["Name"])
    return [of_type("UEFIEnvironmentVariable", Name=bound["Name"], Bytes=list(found))]


@answers("Read-WinhostFirmwareVariable", "Name", "Space")
def _variable(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    found = _firmware(process).variable(bound["Name"], bound["Space"])
    return [] if not found else [base64.b64encode(found).decode()]


@answers("Copy-WinhostVolumeFile", "Source", "Target")
def _copy(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    source, target = bound["Source"], bound["Target"]
    disks, machine = _disks(process), process.machine
    if not target.startswith(_VOLUME):
        guid, path = _place(source)
        found = next(each for each in disks.files_on(guid) if each["path"] == path)
        disks.keep_efi_file(target, found["sha256"], found["size"])
        return ()
    guid, path = _place(target)
    if _is_efi(process, guid):
        disks.put_efi_file(guid, path, json.loads(machine.files.read(source) or b"{}"))
    else:
        disks.put_file(guid, path, b"" if source.startswith(_VOLUME) else machine.files.read(source) or b"")
    return ()


@answers("Remove-WinhostVolumeFile", "Path")
def _remove_file(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    guid, path = _place(bound["Path"])
    if _is_efi(process, guid):
        _disks(process).put_efi_file(guid, path, None)
    else:
        _disks(process).put_file(guid, path, None)
    return ()


def _is_efi(process: CmdletProcess, guid: str) -> bool:
    return bool(_disks(process).partitions[guid]["type"] == EFI)


@answers("Read-WinhostVolumeNames", "Root")
def _names(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    guid, _ = _place(bound["Root"])
    return process.machine.part(InstallerPart).physics.image if guid == _IMAGE else _disks(process).names(guid)


@answers("Read-WinhostVolumeHash", "Path")
def _hash_of(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    guid, path = _place(bound["Path"])
    if _is_efi(process, guid):
        return [each["sha256"] for each in _disks(process).files_on(guid) if each["path"] == path]
    content = _disks(process).file(guid, path)
    return [] if content is None else [sha256(content).hexdigest()]


@answers("Add-WinhostVolumeFolder", "Path")
def _folder_of(_process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    assert _place(bound["Path"])[1], "a path on a volume"
    return ()


@answers("Mount-DiskImage", "ImagePath", "StorageType", "Access", "NoDriveLetter", "PassThru")
def _mount(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    assert (bound["StorageType"], bound["Access"], bound["NoDriveLetter"]) == ("ISO", "ReadOnly", True)
    mounted = process.machine.part(InstallerPart).mounted
    assert mounted.isdisjoint(bound["ImagePath"]), "Windows would give it a second volume"
    mounted.update(bound["ImagePath"])
    return [_image(process, path) for path in bound["ImagePath"]]


@answers("Get-DiskImage", "ImagePath", "StorageType")
def _images(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    return [_image(process, path) for path in bound["ImagePath"]]


def _image(process: CmdletProcess, path: str) -> WindowsObject:
    assert process.machine.files.read(path) is not None, "Windows knows images by their files"
    attached = path in process.machine.part(InstallerPart).mounted
    return of_type("MSFT_DiskImage", DeviceID=path, ImagePath=path, Attached=attached)


@answers("Dismount-DiskImage", "ImagePath", "StorageType", "Confirm")
def _dismount(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    process.machine.part(InstallerPart).mounted.difference_update(bound["ImagePath"])
    return ()


def _place(whole: str) -> tuple[str, str]:
    """The partition that a path is on, and the path on it."""
    guid, _, path = whole.removeprefix(_VOLUME).partition("}\\")
    return guid, path


@answers("Read-WinhostVolumeFiles", "Root")
def _files(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    guid, _ = _place(bound["Root"])
    disks = _disks(process)
    if guid == _IMAGE:
        contents = dict.fromkeys(process.machine.part(InstallerPart).physics.image, b"")
    elif _is_efi(process, guid):
        return [WindowsObject(None, dict(each)) for each in disks.files_on(guid)]
    else:
        contents = {path: disks.file(guid, path) or b"" for path in disks.names(guid)}
    return [
        WindowsObject(None, {"path": path, "size": len(data), "sha256": sha256(data).hexdigest()})
        for path, data in contents.items()
    ]


@answers("Reset-WinhostVolume", "Root")
def _mounted_anew(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    guid, _ = _place(bound["Root"])
    _disks(process).mount_anew(guid)
    return ()


@answers("Test-WinhostReadOnlyVolume", "Root")
def _cannot_be_written(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    guid, _ = _place(bound["Root"])
    return [not _disks(process).is_writable(guid)]
