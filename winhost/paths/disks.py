"""Disks of a Windows host: their partitions, and the space that Linux can get."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from winhost.core.answers import MissingFact, if_known
from winhost.core.dataclass import dataclass
from winhost.core.steps import DesiredResource
from winhost.model.errors import visible
from winhost.model.facts import Instance
from winhost.model.reason import Refusal
from winhost.model.units import Bytes, GiB, MiB, about
from winhost.resources.host import HostFacts
from winhost.resources.linux.files import DataDisk
from winhost.resources.windows.disks import (
    DYNAMIC,
    EFI,
    LINUX_PARTITION,
    OWN_EFI,
    RESERVED,
    STORAGE_SPACES,
    OwnPartition,
    Partition,
)
from winhost.resources.windows.read_only import Disk, EfiVolume, ResizeLimit

MIN_LINUX_SIZE: Bytes = 64 * GiB  # Ubuntu with driver, container engine, one image of vLLM and one small model
EFI_SIZE: Bytes = GiB  # of the EFI system partition on a disk of its own
STAGING_SIZE: Bytes = 8 * GiB  # default size of the installer's partition
# The space that Windows keeps: its own limit is optimistic, and updates need free space on the system volume.
MARGIN_ABOVE_LIMIT: Bytes = 10 * GiB
MIN_FREE: Bytes = 64 * GiB
FREE_SHARE = 5  # a fifth of the volume remains free
PLAIN_BUSES = ("nvme", "sata", "ata")  # Linux sees these disks as Windows does: no RAID, Storage Spaces, iSCSI or USB
# Buses whose disks Linux may see differently, or that may be unplugged.
UNSUITABLE_BUSES = ("spaces", "iscsi", "usb", "file backed virtual", "raid", "sd", "mmc")
_BACKUP_TABLE_SIZE: Bytes = MiB  # the second copy of the GPT is in its last sectors


@dataclass(frozen=True)
class Gap:
    """Bytes of a disk that no partition has, in whole MiB."""

    disk: str
    offset: Bytes
    size: Bytes


def recorded_disk(facts: HostFacts, name: str) -> str | None:
    """Return the GUID of the disk on which winhost created a partition of this name, or began to; else None."""
    made = if_known(lambda: facts.find(OwnPartition, {"name": name}))
    return made.disk if made is not None and made.made is not False else None


def windows_partition(facts: HostFacts) -> Instance[Partition] | None:
    """Return the partition that Windows runs from. Raises MissingFact."""
    return next((each for each in facts.all(Partition) if each.state.boot), None)


def windows_disk(facts: HostFacts) -> Instance[Disk] | None:
    """Return the disk that Windows runs from. Raises MissingFact."""
    return next((each for each in facts.all(Disk) if each.state.boot), None)


def partitions_on_disk(facts: HostFacts, guid: str | None) -> list[Instance[Partition]]:
    """Return the partitions of a disk, by the disk's GUID, sorted by offset. Raises MissingFact."""
    found = (each for each in facts.all(Partition) if guid is not None and each.state.disk == guid)
    return sorted(found, key=lambda each: each.state.offset)


def empty_disks(facts: HostFacts) -> list[Instance[Disk]]:
    """Return plain, healthy disks that are large enough for Ubuntu and its installer and have no partitions other than
    those that Windows reserves. Raises MissingFact.
    """
    return [each for each in facts.all(Disk) if _is_empty(facts, each.state)]


def _is_empty(facts: HostFacts, disk: Disk) -> bool:
    if disk.boot or disk.system or disk.offline or disk.read_only or disk.bus.casefold() not in PLAIN_BUSES:
        return False
    if disk.health in ("unhealthy", "warning"):
        return False
    if disk.size < MIN_LINUX_SIZE + EFI_SIZE + STAGING_SIZE + 2 * MiB:  # the table is at both ends
        return False
    kinds = {each.state.type for each in partitions_on_disk(facts, disk.guid)}
    return disk.style == "RAW" or (disk.style == "GPT" and not kinds - {RESERVED})


def gaps(facts: HostFacts, disk: Disk) -> Iterator[Gap]:
    """Yield the gaps between the partitions of a GPT disk, sorted by offset. Raises MissingFact."""
    if disk.style != "GPT" or disk.guid is None:
        return
    begin = MiB
    for each in partitions_on_disk(facts, disk.guid):
        yield from _gap(disk.guid, begin, each.state.offset)
        begin = max(begin, each.state.offset + each.state.size)
    yield from _gap(disk.guid, begin, disk.size - _BACKUP_TABLE_SIZE)


def _gap(disk: str, begin: Bytes, end: Bytes) -> Iterator[Gap]:
    begin, end = -(-begin // MiB) * MiB, end // MiB * MiB
    if end > begin:
        yield Gap(disk, begin, end - begin)


def largest_gap(facts: HostFacts) -> Gap | None:
    """Return the largest gap on the disk of Windows, or None. Raises MissingFact."""
    disk = windows_disk(facts)
    return max(gaps(facts, disk.state), key=lambda gap: gap.size, default=None) if disk else None


def min_windows_size(partition: Partition, limit: ResizeLimit) -> Bytes:
    """Return the size below which winhost does not shrink the Windows partition, in whole MiB."""
    used = partition.size - limit.free
    floor = max(limit.smallest + MARGIN_ABOVE_LIMIT, used + max(MIN_FREE, partition.size // FREE_SHARE))
    return -(-floor // MiB) * MiB


def shrinkable_bytes(facts: HostFacts) -> Bytes:
    """Return the bytes by which the Windows partition can shrink. Raises MissingFact."""
    partition = windows_partition(facts)
    limit = facts.find(ResizeLimit, partition.key) if partition else None
    return max(0, partition.state.size - min_windows_size(partition.state, limit)) if partition and limit else 0


def immovable_bytes(facts: HostFacts) -> Bytes:
    """Return the free bytes that cannot be used because files behind them cannot be moved. Raises MissingFact."""
    partition = windows_partition(facts)
    limit = facts.find(ResizeLimit, partition.key) if partition else None
    if partition is None or limit is None:
        return 0
    return max(0, limit.smallest - (partition.state.size - limit.free))


DiskCheck = Callable[[HostFacts], str | None]  # returns the observed problem, or None

_MIN_FREE_ON_ESP: Bytes = 30 * MiB  # shim, GRUB and MokManager twice, some 20 MiB, and room for one update


def windows_partitions(facts: HostFacts) -> list[Instance[Partition]]:
    """Return the partitions of the disk that Windows runs from. Raises MissingFact."""
    disk = windows_disk(facts)
    return partitions_on_disk(facts, disk.state.guid) if disk else []


def free_esp_bytes(facts: HostFacts) -> Bytes | None:
    """Return the free bytes of Windows' EFI system partition; None if there is none or several. Raises MissingFact."""
    guids = {each.key["partition"] for each in windows_partitions(facts) if each.state.type == EFI}
    found = [each.state.free for each in facts.all(EfiVolume) if each.key["partition"] in guids]
    return found[0] if len(found) == 1 else None


def fits_boot_loader(free: Bytes) -> bool:
    """Tell whether Ubuntu's boot loader fits into this many free bytes of an EFI system partition."""
    return free >= _MIN_FREE_ON_ESP


def dynamic_disk(facts: HostFacts) -> str | None:
    """The disk of Windows is a dynamic disk, or a member of Storage Spaces."""
    kinds = {each.state.type for each in windows_partitions(facts)}
    if not kinds & {*DYNAMIC, STORAGE_SPACES}:
        return None
    kind = "Storage Spaces" if STORAGE_SPACES in kinds else "the Logical Disk Manager"
    return f"partitions of {kind} on the disk of Windows"


def several_efi_partitions(facts: HostFacts) -> str | None:
    """The disk of Windows has no EFI system partition, or several of them."""
    disk = windows_disk(facts)
    found = [each for each in windows_partitions(facts) if each.state.type == EFI]
    if disk is None or disk.state.style != "GPT" or len(found) == 1:
        return None
    return f"{len(found)} on the disk of Windows"


def efi_partition_full(facts: HostFacts) -> str | None:
    """The EFI system partition has no room for Ubuntu's boot loader."""
    free = free_esp_bytes(facts)
    if free is None or fits_boot_loader(free):
        return None
    return f"{free // MiB} MiB free, {_MIN_FREE_ON_ESP // MiB} MiB needed"


WINDOWS_DISK_CHECKS: Sequence[DiskCheck] = (dynamic_disk, several_efi_partitions, efi_partition_full)
_WINDOWS_DISK_HINT = "Or go beside Windows: --set disk=windows."


def gets_own_disk(facts: HostFacts) -> bool:
    """Tell whether Ubuntu has a disk of its own, or gets one by default. Raises MissingFact."""
    return unfinished_disk(facts) is not None or (
        recorded_disk(facts, LINUX_PARTITION) is None and bool(empty_disks(facts))
    )


def unfinished_disk(facts: HostFacts) -> Disk | None:
    """Return the separate disk on which winhost began to create Ubuntu's partitions, or None. Raises MissingFact."""
    efi, linux = recorded_disk(facts, OWN_EFI), recorded_disk(facts, LINUX_PARTITION)
    if efi is None or linux not in (None, efi):
        return None
    return next((each.state for each in facts.all(Disk) if each.state.guid == efi), None)


def choose_disk(facts: HostFacts, requested: str) -> Disk | None:
    """Choose a disk for Ubuntu; None means that of Windows. requested: auto, windows, or a GUID.

    Raises Refusal, MissingFact.
    """
    if requested == "windows":
        # The rules check this only if Ubuntu would get no other disk.
        observed = [problem for check in WINDOWS_DISK_CHECKS if (problem := check(facts))]
        if observed:
            hint = "Leave out --set disk=windows, and Ubuntu gets the empty disk."
            raise Refusal("disk.windows-unfit", "; ".join(observed), hint)
        return None
    begun = unfinished_disk(facts)
    if begun is not None and requested not in ("auto", begun.guid):
        hint = f"Undo it first (winhost rollback RUN), or go on there: --set disk={begun.guid}"
        raise Refusal("disk.not-empty", f"An EFI system partition for Ubuntu is begun on {begun.model} already", hint)
    if begun is not None:
        return begun
    empty = sorted((each.state for each in empty_disks(facts)), key=lambda disk: disk.size)
    if requested != "auto":
        return _find_empty_disk(facts, empty, requested)
    tabled = [disk for disk in empty if disk.style == "GPT"]
    if empty and not tabled:
        raise Refusal(
            "disk.no-table",
            f"Windows finds no partition table on {empty[-1].model}, {about(empty[-1].size)}",
            "If nothing of another system is on it (LVM, LUKS, ZFS, RAID), give it one on the host: "
            f"Initialize-Disk -Number {empty[-1].number} -PartitionStyle GPT. {_WINDOWS_DISK_HINT}",
        )
    return tabled[-1] if tabled else None


def _find_empty_disk(facts: HostFacts, empty: list[Disk], guid: str) -> Disk:
    those = [each.state for each in facts.all(Disk) if each.state.guid == guid]
    if len(those) != 1:
        raise Refusal(
            "disk.not-there",
            f"{len(those)} disks of the host have the GUID {guid}, and one is needed",
            f"winhost detect HOST -o wide shows the disks with their GUIDs. {_WINDOWS_DISK_HINT}",
        )
    if those[0] not in empty:
        hint = "Name an empty one, or go beside Windows: --set disk=windows."
        what = f"{those[0].model} is not empty, too small, not healthy, or not a plain disk"
        raise Refusal("disk.not-empty", what, hint)
    return those[0]


# ---- a data disk that is not empty


def refuse_nonempty_disks(facts: HostFacts, desired: Iterable[DesiredResource]) -> None:
    """Refuse to format data disks that are not empty. The host checks more right before formatting. Raises Refusal."""
    for each in desired:
        if each.resource != DataDisk.resource_type.name:
            continue
        with suppress(MissingFact):
            found = facts.find(DataDisk, each.key)
            if found is None or all(getattr(found, name) == value for name, value in each.desired.items()):
                continue
            if found.holds:
                raise Refusal(
                    "disk.not-empty",
                    visible(f"{each.title}: {found.disk} is not empty: {'; '.join(found.holds)}."),
                    "Name another disk. What is surely nobody's, empty yourself: wipefs --all, then blkdiscard.",
                )
