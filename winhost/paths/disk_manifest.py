"""The disk manifest of a host that was prepared for an Ubuntu beside Windows, filled from its facts."""

from collections.abc import Mapping

from winhost.autoinstall.manifest import DiskManifest, MachineIdentity, PartitionRecord, PartitionRole
from winhost.model.facts import Instance
from winhost.model.refusal import Refusal
from winhost.paths.disk_space import on_disk
from winhost.resources.host import HostFacts
from winhost.resources.windows.bit_locker.resource import BitLocker
from winhost.resources.windows.disk.resource import Disk
from winhost.resources.windows.own_partition.resource import LINUX_PARTITION, STAGING, OwnPartition
from winhost.resources.windows.partition.resource import EFI, RECOVERY, RESERVED, Partition

_BY_TYPE: Mapping[str, PartitionRole] = {
    EFI: PartitionRole.ESP,
    RESERVED: PartitionRole.MSR,
    RECOVERY: PartitionRole.RECOVERY,
}
_FILE_SYSTEMS: Mapping[PartitionRole, str] = {
    PartitionRole.ESP: "vfat",
    PartitionRole.STAGING: "vfat",
    PartitionRole.TARGET: "ntfs",  # as Windows leaves it, until the installer makes it anew
}


def manifest_beside(facts: HostFacts) -> DiskManifest:
    """Of the disk that Ubuntu's partition is on. Raises MissingFact; Refusal where there is none."""
    target = facts.of(OwnPartition, {"name": LINUX_PARTITION})
    if target is None or target.made is not True or target.label is None:
        raise _unprepared("winhost has made no partition for Ubuntu on this host")
    disk = _disk(facts, target.disk)
    records = [_record(facts, each, target) for each in on_disk(facts, target.disk)]
    if [each.role for each in records].count(PartitionRole.TARGET) != 1:
        raise _unprepared("the partition that winhost made for Ubuntu is not on its disk any more")
    return DiskManifest(
        machine=MachineIdentity(facts.machine_id),
        guid=str(disk.guid),
        size=disk.size,
        sector=disk.sector,
        model=disk.model,
        partitions=tuple(records),
        run=target.label.removeprefix("WINHOST-"),
    )


def _disk(facts: HostFacts, guid: str | None) -> Disk:
    found = [each.state for each in facts.all(Disk) if guid is not None and each.state.guid == guid]
    if len(found) != 1:
        raise _unprepared(f"{len(found)} disks of this host have the GUID {guid}")
    return found[0]


def _record(facts: HostFacts, partition: Instance[Partition], target: OwnPartition) -> PartitionRecord:
    state, guid = partition.state, partition.key["partition"]
    role = _role(facts, guid, state, target)
    file_system = _FILE_SYSTEMS.get(role) or (_of_windows(facts, state) if role is PartitionRole.WINDOWS else None)
    return PartitionRecord(guid, state.offset, state.size, state.type, role, state.number, file_system)


def _role(facts: HostFacts, guid: str, state: Partition, target: OwnPartition) -> PartitionRole:
    staging = facts.of(OwnPartition, {"name": STAGING})
    if guid == target.partition:
        return PartitionRole.TARGET
    if staging is not None and guid == staging.partition:
        return PartitionRole.STAGING
    return PartitionRole.WINDOWS if state.boot else _BY_TYPE.get(state.type, PartitionRole.OTHER)


def _of_windows(facts: HostFacts, state: Partition) -> str:
    """Linux sees a volume that is encrypted as one of BitLocker, protected or not."""
    volumes = {each.key["volume"]: each.state.conversion for each in facts.all(BitLocker)}
    return "ntfs" if volumes.get(f"{state.letter}:", "fully-decrypted") == "fully-decrypted" else "BitLocker"


def _unprepared(sentence: str) -> Refusal:
    return Refusal("dual-boot.unprepared", sentence, "Plan and apply it first: winhost plan HOST --path dual-boot")
