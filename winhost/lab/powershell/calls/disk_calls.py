"""Cmdlets for disks, partitions, volumes and BitLocker, and helpers of the agent for firmware and volumes."""

import base64
from collections.abc import Iterable
from typing import Any

from winhost.core.answers import Record
from winhost.lab.physics.disks import Disks, describe_bytes
from winhost.lab.physics.firmware import GLOBAL, FirmwarePart
from winhost.lab.physics.installer import InstallerPart
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import WindowsObject, windows_object
from winhost.lab.powershell.calls.cmdlet_process import BoundParameters, CmdletProcess, answers, register_calls
from winhost.lab.powershell.windows_views import braced, make_object, to_windows_enum
from winhost.resources.windows.disks import BASIC_DATA, EFI

_VOLUME = "\\\\?\\Volume{"
_IMAGE = "0d15c000-0000-4000-8000-000000000000"  # of the volume of a mounted image


def _disks(machine: Machine) -> Disks:
    return machine.part(Disks)


def _partition(disks: Disks, record: Record) -> WindowsObject:
    guid, disk = record.key["partition"], disks.disk_of(record.state)
    return make_object(
        "MSFT_Partition",
        record,
        DeviceID=guid,
        DiskNumber=disk.state["number"] if disk else None,
        DriveLetter=record.state["letter"] or "\0",
        IsReadOnly=guid in disks.read_only,
    )


def _find_partition(machine: Machine, partition: Any) -> Record:
    return next(r for r in machine.instances("Partition") if r.key["partition"] == partition["DeviceID"])


@answers("Get-PartitionSupportedSize", "InputObject", "AsJob")
def _supported_size(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    if not bound.get("AsJob"):
        return [_limits(process.machine, given) for given in bound["InputObject"]]
    process.jobs += 1
    state = "Running" if _disks(process.machine).physics.looks_for_ever else "Completed"
    return [windows_object("StorageJob", DeviceID=bound["InputObject"][0]["DeviceID"], State=state)]


def _limits(machine: Machine, partition: Any) -> WindowsObject:
    limits = _disks(machine).limits(_find_partition(machine, partition))
    return windows_object("MSFT_PartitionSupportedSize", SizeMin=limits["smallest"], SizeMax=limits["largest"])


@answers("Get-Volume", "FilePath", "Partition", "DiskImage")
def _volume(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    if "DiskImage" in bound:
        return [windows_object("MSFT_Volume", Path=f"{_VOLUME}{_IMAGE}}}\\", FileSystem="UDF")]
    if "Partition" not in bound:
        return [windows_object("MSFT_Volume", SizeRemaining=process.machine.lab.new_vms.free)]
    disks, record = _disks(process.machine), _find_partition(process.machine, bound["Partition"])
    path = f"\\\\?\\Volume{braced(record.key['partition']).lower()}\\"
    if record.state["boot"]:
        limits = disks.limits(record)
        health = to_windows_enum(limits["health"])
        return [
            windows_object(
                "MSFT_Volume", SizeRemaining=limits["free"], Path=path, FileSystem="NTFS", HealthStatus=health
            )
        ]
    if record.state["type"] != EFI:
        return [windows_object("MSFT_Volume", Path=path, FileSystem="FAT32")]
    found = disks.volume(record)
    return [windows_object("MSFT_Volume", SizeRemaining=found["free"], Path=path, FileSystem=found["file_system"])]


@answers("Get-WinEvent", "FilterHashtable", "MaxEvents")
def _events(process: CmdletProcess, _bound: BoundParameters) -> Iterable[Any]:
    disks = _disks(process.machine)
    held = [disks.limits(r)["last_held_by"] for r in process.machine.instances("Partition") if r.state["boot"]]
    for file in filter(None, held[:1]):
        properties = [windows_object("EventProperty", Value=each) for each in ("(C:)", file, 4)]
        return [windows_object("EventRecord", Id=259, Properties=properties)]
    raise process.machine.windows_error("no-events", "Get-WinEvent")


@answers("Get-BitLockerVolume")
def _bitlocker_volumes(process: CmdletProcess, _bound: BoundParameters) -> Iterable[Any]:
    secrets = {"recovery-password": {"RecoveryPassword": _disks(process.machine).physics.recovery_password}}
    for record in process.machine.instances("BitLocker"):
        protectors = [
            make_object("BitLockerVolumeKeyProtector", each, **secrets.get(each["kind"], {}))
            for each in record.state["protectors"]
        ]
        yield make_object("BitLockerVolume", record, KeyProtector=protectors)


@answers("Invoke-CimMethod", "InputObject", "MethodName", "Arguments")
def _method(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    volume = _disks(process.machine).volumes[bound["InputObject"]["DeviceID"]]
    if bound["MethodName"] == "GetSuspendCount":
        return [windows_object("SuspendCount", SuspendCount=volume["suspended"] or 0)]
    return [windows_object("PlatformValidationProfile", PlatformValidationProfile=volume["pcrs"])]


# ---- changes


@answers("New-Partition", "DiskNumber", "Offset", "Size", "GptType")
def _new(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    disks = _disks(process.machine)
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
            _disks(process.machine).set_read_only(given["DeviceID"], read_only=bound["IsReadOnly"])
        else:
            _disks(process.machine).set_partition(given["DeviceID"], **changed, **hidden)
    return ()


# ---- helpers of the agent


@answers("Copy-WinhostVolumeFile", "Source", "Target")
def _copy(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    source, target = bound["Source"], bound["Target"]
    disks, files = _disks(process.machine), process.machine.files
    if target.startswith(_VOLUME):
        disks.write_file(*_split_volume_path(target), b"" if source.startswith(_VOLUME) else files.read(source) or b"")
    else:
        files.write(target, disks.read_file(*_split_volume_path(source)) or b"")
    return ()


@answers("Mount-DiskImage", "ImagePath", "StorageType", "Access", "NoDriveLetter", "PassThru")
def _mount(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    assert (bound["StorageType"], bound["Access"], bound["NoDriveLetter"]) == ("ISO", "ReadOnly", True)
    mounted = _mounted_images(process.machine)
    assert mounted.isdisjoint(bound["ImagePath"]), "Windows would give it a second volume"
    mounted.update(bound["ImagePath"])
    return [_image(process.machine, path) for path in bound["ImagePath"]]


def _mounted_images(machine: Machine) -> set[str]:
    return machine.part(InstallerPart).mounted


def _image(machine: Machine, path: str) -> WindowsObject:
    assert machine.files.read(path) is not None, "Windows knows images by their files"
    attached = path in _mounted_images(machine)
    return windows_object("MSFT_DiskImage", DeviceID=path, ImagePath=path, Attached=attached)


def _split_volume_path(whole: str) -> tuple[str, str]:
    """Split a path into the GUID of its partition, and the path on that."""
    guid, _, path = whole.removeprefix(_VOLUME).partition("}\\")
    return guid, path


def _files(machine: Machine, root: str) -> list[dict[str, Any]]:
    guid, _ = _split_volume_path(root)
    if guid == _IMAGE:
        return [{"path": path, **describe_bytes(b"")} for path in machine.part(InstallerPart).physics.image]
    return _disks(machine).files_on(guid)


def _format(machine: Machine, bound: BoundParameters) -> WindowsObject:
    _disks(machine).format_volume(bound["Partition"]["DeviceID"], bound["FileSystem"], bound["NewFileSystemLabel"])
    return windows_object("MSFT_Volume", FileSystem=bound["FileSystem"])


def _write_variable(machine: Machine, bound: BoundParameters) -> None:
    assert bound["Space"] == GLOBAL
    machine.part(FirmwarePart).write_variable(bound["Name"], base64.b64decode(bound["Bytes"]))


def _variable(machine: Machine, bound: BoundParameters) -> str | None:
    found = machine.part(FirmwarePart).read_variable(bound["Name"], bound["Space"])
    return base64.b64encode(found).decode() if found else None


def _read_hashes(machine: Machine, whole: str) -> list[str]:
    guid, path = _split_volume_path(whole)
    return [each["sha256"] for each in _disks(machine).files_on(guid) if each["path"] == path]


register_calls(
    {
        "Get-Partition": lambda m, _: [_partition(_disks(m), record) for record in m.instances("Partition")],
        "Receive-Job Job": lambda m, g: [_limits(m, given) for given in g["Job"]],
        "Format-Volume Partition FileSystem NewFileSystemLabel Confirm": _format,
        "Write-WinhostFirmwareVariable Name Space Bytes:byte[]": _write_variable,
        "Get-SecureBootUEFI Name": lambda m, g: windows_object(
            "UEFIEnvironmentVariable", Name=g["Name"], Bytes=list(m.part(FirmwarePart).read_secure_variable(g["Name"]))
        ),
        "Read-WinhostFirmwareVariable=bytes Name Space": _variable,
        "Remove-WinhostVolumeFile Path": lambda m, g: _disks(m).write_file(*_split_volume_path(g["Path"]), None),
        "Read-WinhostVolumeHash Path": lambda m, g: _read_hashes(m, g["Path"]),
        "Read-WinhostVolumeFiles Root": lambda m, g: [WindowsObject(None, each) for each in _files(m, g["Root"])],
        "Read-WinhostVolumeNames Root": lambda m, g: [each["path"] for each in _files(m, g["Root"])],
        "Add-WinhostVolumeFolder Path": lambda _, g: None,
        "Get-DiskImage ImagePath StorageType": lambda m, g: [_image(m, path) for path in g["ImagePath"]],
        "Dismount-DiskImage ImagePath StorageType Confirm": lambda m, g: _mounted_images(m).difference_update(
            g["ImagePath"]
        ),
        "Reset-WinhostVolume Root": lambda m, g: _disks(m).remount(_split_volume_path(g["Root"])[0]),
        "Test-WinhostReadOnlyVolume Root": lambda m, g: not _disks(m).is_writable(_split_volume_path(g["Root"])[0]),
        "Backup-BitLockerKeyProtector MountPoint KeyProtectorId Confirm": lambda m, _: _disks(m).backup_key(
            "active-directory"
        ),
        "BackupToAAD-BitLockerKeyProtector MountPoint KeyProtectorId Confirm": lambda m, _: _disks(m).backup_key(
            "entra"
        ),
    }
)
