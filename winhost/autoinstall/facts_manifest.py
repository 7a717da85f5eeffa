"""Describe the disks that an installer may touch, by the facts of a Windows host: the disk on which Windows made a
partition for Ubuntu, or disks that Ubuntu gets whole.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from winhost.autoinstall.guard_order import DiskChoice, WholeDisk
from winhost.autoinstall.installer_storage import is_blank_serial, normalize_name
from winhost.autoinstall.manifest import (
    DiskManifest,
    MachineIdentity,
    PartitionRecord,
    PartitionRole,
    is_placeholder,
    normalize_guid,
)
from winhost.core.answers import MissingFact
from winhost.model.errors import RefusedError, visible
from winhost.model.facts import Instance
from winhost.resources.host import HostFacts
from winhost.resources.windows.disks import (
    DYNAMIC,
    EFI,
    LINUX_PARTITION,
    RECOVERY,
    RESERVED,
    STAGING,
    STORAGE_SPACES,
    BitLocker,
    OwnPartition,
    Partition,
    starts_windows,
)
from winhost.resources.windows.read_only import Disk, HardwareClock, SecureBoot

_ROLES_BY_TYPE = {EFI: PartitionRole.ESP, RESERVED: PartitionRole.MSR, RECOVERY: PartitionRole.RECOVERY}
_OPEN = "fully-decrypted"
# The buses of refused disks, by Windows' names without blanks: other machines may use such a disk, people may unplug
# it, or it exists only in Windows.
_REFUSED_BUSES = {
    "usb": "on USB",
    "sd": "a memory card",
    "mmc": "a memory card",
    "iscsi": "on iSCSI",
    "fibrechannel": "on Fibre Channel",
    "spaces": "a volume of Storage Spaces",
    "storagespaces": "a volume of Storage Spaces",
    "filebackedvirtual": "a file of Windows",
    "virtual": "a file of Windows",
}
_PLAIN = ("nvme", "sata", "ata", "sas")
_VIRTUAL = ("virtual", "qemu", "vbox", "virtio")


def machine_of(facts: HostFacts) -> MachineIdentity:
    """Return the SMBIOS UUID, and the serial number if the vendor set one and Windows could read it."""
    try:
        serial = facts.firmware.serial
    except MissingFact:
        serial = None
    return MachineIdentity(
        normalize_guid(facts.machine_id), None if serial is None or is_placeholder(serial) else serial
    )


def manifest_of_facts(facts: HostFacts) -> DiskManifest:
    """Describe the disk with the partition that Windows made for Ubuntu. Raises RefusedError (NotPrepared),
    MissingFact.
    """
    made: dict[str, OwnPartition] = {}
    for name in (LINUX_PARTITION, STAGING):
        own = facts.find(OwnPartition, {"name": name})
        if own is not None and own.made is True and own.ours:
            made[name] = own
    linux, staging = made.get(LINUX_PARTITION), made.get(STAGING)
    if linux is None or linux.disk is None or linux.label is None:
        raise _preparation_error(
            f"Windows on {visible(facts.host)} has made no partition for Ubuntu",
            f"First: winhost plan {visible(facts.host)} --path dual-boot, apply it, and read the host again: "
            f"winhost detect {visible(facts.host)} -o facts",
        )
    disk = _disk(facts, linux.disk).state
    roles = {
        each.partition: role for each, role in ((linux, PartitionRole.TARGET), (staging, PartitionRole.STAGING)) if each
    }
    records = tuple(_record(facts, each, roles.get(each.key["partition"])) for each in _partitions(facts, linux.disk))
    try:
        found = DiskManifest(
            machine_of(facts), linux.disk, disk.size, disk.sector, disk.model, records, linux.label[-8:].lower()
        )
        found.with_role(PartitionRole.ESP)
        found.with_role(PartitionRole.TARGET)
    except ValueError as wrong:
        raise _preparation_error(f"the disk {linux.disk} cannot be described: {wrong}", "Read the host again") from None
    return found


def windows_esp_of(facts: HostFacts) -> str:
    """Return the GUID of the EFI system partition that Windows starts from. Raises RefusedError (NotPrepared),
    MissingFact.
    """
    found = [each.key["partition"] for each in facts.all(Partition) if starts_windows(each.state)]
    if len(found) != 1:
        what = f"Windows started from {len(found)} EFI system partitions, and one is needed"
        raise _preparation_error(what, "List them: winhost detect HOST -o wide")
    return found[0]


def keeps_local_time(facts: HostFacts, replaced: Sequence[str] = ()) -> bool:
    """Tell whether Windows stays and keeps local time in the hardware clock. replaced: disks that Ubuntu gets whole."""
    replaced_disks = {_disk(facts, name).key["disk"] for name in replaced}
    if any(each.state.boot and each.key["disk"] in replaced_disks for each in facts.all(Disk)):
        return False
    try:
        return not facts.the(HardwareClock).utc
    except MissingFact:
        return True  # the default of Windows


def read_whole_disks(facts: HostFacts, names: Sequence[str]) -> list[WholeDisk]:
    """Describe disks that Ubuntu gets whole, without a consent to their wipe. names: the GUIDs of their tables, or the
    unique ids of disks without a table. Raises RefusedError (NotPrepared, DiskUnfit), MissingFact.
    """
    found = []
    for number, name in enumerate(names):
        disk = _disk(facts, name)
        _refuse_unfit(disk)
        guid, serial = disk.state.guid, None if disk.state.guid else disk.key["disk"]
        records = tuple(_record(facts, each, None) for each in _partitions(facts, guid)) if guid else ()
        choice = DiskChoice(f"disk-{number}", disk.state.size, guid, serial)
        found.append(
            WholeDisk(choice, disk.state.sector, disk.state.model, records, tuple(_consent_warnings(disk, records)))
        )
    return found


def _refuse_unfit(disk: Instance[Disk]) -> None:
    """Refuse a disk that Ubuntu cannot get. Raises RefusedError (DiskUnfit)."""
    state = disk.state
    if (bus := _REFUSED_BUSES.get(state.bus.casefold().replace(" ", ""))) is not None:
        why = f"it is {bus}, and Ubuntu gets only disks of the machine itself that Linux sees as Windows does"
    elif state.style not in ("GPT", "RAW"):
        why = f"its partition table is {visible(state.style)}, so that neither it nor its partitions have GUIDs"
    elif is_blank_serial(state.guid or disk.key["disk"]) or is_placeholder(state.guid or disk.key["disk"]):
        why = "it has no table and no serial number of its own, so that the installer could not tell it from others"
    elif not normalize_name(state.model):
        why = "it has no model, which the installer compares"
    elif state.health == "unhealthy":
        why = "Windows calls it unhealthy"
    elif state.read_only:
        why = "it is read-only"
    else:
        return
    hint = "Name another disk."
    if state.style == "MBR" and not (state.boot or state.system):
        hint += (
            " Or, once what is on it is kept elsewhere, give it another table on the host, and read that again: "
            f"Clear-Disk -Number {state.number} -RemoveData; Initialize-Disk -Number {state.number} -PartitionStyle GPT"
        )
    what = f"Ubuntu cannot get the disk {visible(state.model)} ({visible(disk.key['disk'])}): {why}"
    raise RefusedError("DiskUnfit", what=what, hint=hint)


def _consent_warnings(disk: Instance[Disk], partitions: Sequence[PartitionRecord]) -> Iterator[str]:
    """Yield the warnings for the person who consents to the loss of this disk."""
    state, types = disk.state, {each.type for each in partitions}
    bus = state.bus.casefold()
    if state.guid is None:
        yield "Windows finds no partition table; to Windows a disk of LVM, LUKS, ZFS or RAID looks so, too"
    if state.boot or state.system:
        yield "Windows starts from it"
    if state.offline:
        yield "Windows leaves it offline, as it does with the copy of another disk"
    if bus not in _PLAIN:
        raid = "it is behind a RAID controller: it may be several disks, and Linux may see those"
        yield (
            raid if bus == "raid" else f"nobody has seen how Linux shows a disk on {visible(state.bus)} (unverified)"
        )
    if any(word in state.model.casefold() for word in _VIRTUAL):
        yield "it is a virtual disk"
    if state.health != "healthy":
        yield f"Windows says of its health: {visible(state.health)}"
    if types & {STORAGE_SPACES, *DYNAMIC}:
        yield "it belongs to Storage Spaces or to dynamic disks: volumes that it shares with other disks go, too"


def authorities_of(facts: HostFacts) -> tuple[str, ...] | None:
    """Return the signers that the firmware accepts; None if Secure Boot is off. Raises MissingFact."""
    found = facts.the(SecureBoot)
    return found.authorities if found.state == "on" else None


def _disk(facts: HostFacts, name: str) -> Instance[Disk]:
    requested = name.strip("{}").casefold()
    matches = [
        each
        for each in facts.all(Disk)
        if requested == (each.state.guid or each.key["disk"]).casefold()  # the table's GUID names a disk, if it has one
    ]
    if len(matches) != 1:
        what = f"{len(matches)} disks of {visible(facts.host)} are called {visible(name)[:60]}, and one is needed"
        hint = "A disk is called by the GUID of its table, or without one by its unique id: winhost detect HOST -o wide"
        raise _preparation_error(what, hint)
    return matches[0]


def _partitions(facts: HostFacts, guid: str) -> list[Instance[Partition]]:
    found = [each for each in facts.all(Partition) if each.state.disk == guid]
    return sorted(found, key=lambda each: each.state.offset)


def _record(facts: HostFacts, each: Instance[Partition], role: PartitionRole | None) -> PartitionRecord:
    state = each.state
    known = role or _ROLES_BY_TYPE.get(state.type) or (PartitionRole.WINDOWS if state.boot else PartitionRole.OTHER)
    file_system = None  # not certain: the guard does not compare it
    if state.type == EFI:
        file_system = "vfat"
    else:
        with suppress(MissingFact):
            volumes = {volume.key["volume"].rstrip(":\\"): volume.state for volume in facts.all(BitLocker)}
            volume = volumes.get((state.letter or "").rstrip(":\\"))
            if volume is not None and volume.conversion not in (None, _OPEN, "unknown"):
                file_system = "BitLocker"
    return PartitionRecord(
        each.key["partition"], state.offset, state.size, state.type, known, state.number, file_system
    )


def _preparation_error(what: str, hint: str) -> RefusedError:
    return RefusedError("NotPrepared", what=what, hint=hint)
