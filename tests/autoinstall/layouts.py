"""Disks as Windows lays them out: manifests of them, and images that hold the same."""

from winhost.autoinstall.manifest import DiskManifest, MachineIdentity, PartitionRecord, PartitionRole
from winhost.model.units import Bytes, MiB
from winhost.resources.windows.disks import BASIC_DATA, EFI, LINUX, RECOVERY, RESERVED

MACHINE = MachineIdentity("4c4c4544-0042-3510-8052-b4c04f4e3132", "B5RN12")


def guid_of(number: int) -> str:
    return f"{number:08x}-1111-4222-8333-44444444beef"


# Role, type, MiB, file system; Windows 11 has them in this order, and the target is cut from the end of C:.
WINDOWS_11 = (
    (PartitionRole.ESP, EFI, 100, "vfat"),
    (PartitionRole.MSR, RESERVED, 16, None),
    (PartitionRole.WINDOWS, BASIC_DATA, 160, "ntfs"),
    (PartitionRole.TARGET, LINUX, 96, None),
    (PartitionRole.RECOVERY, RECOVERY, 48, "ntfs"),
)
# Nobody's file system fits here, and none is made: it is what a table says of them.
SMALL = tuple((role, type_, mib, kind) for (role, type_, _, kind), mib in zip(WINDOWS_11, (1, 1, 4, 9, 2), strict=True))
# A disk of its own, as Windows prepares it: its first partition is what Initialize-Disk reserves.
OWN_DISK = (
    (PartitionRole.MSR, RESERVED, 1, None),
    (PartitionRole.ESP, EFI, 1, "vfat"),
    (PartitionRole.TARGET, LINUX, 9, None),
)
# As small as mkfs makes them.
WITH_BITLOCKER = tuple(
    (role, type_, mib, "BitLocker" if role is PartitionRole.WINDOWS else kind)
    for (role, type_, _, kind), mib in zip(WINDOWS_11, (40, 16, 24, 32, 16), strict=True)
)
Rows = tuple[tuple[PartitionRole, str, int, str | None], ...]


def manifest_of(rows: Rows = WINDOWS_11, sector: Bytes = 512, first: int = 1) -> DiskManifest:
    """first: the number from which its GUIDs count, so that two disks differ."""
    partitions, offset = [], MiB
    for number, (role, type_, mib, filesystem) in enumerate(rows, 1):
        guid = guid_of(first + number)
        partitions.append(PartitionRecord(guid, offset, mib * MiB, type_, role, number, filesystem))
        offset += mib * MiB
    return DiskManifest(MACHINE, guid_of(first), offset + MiB, sector, "QEMU HARDDISK", tuple(partitions), "00c0ffee")


MANIFEST = manifest_of()
