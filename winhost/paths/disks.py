"""Disks: what is on them, and what can be made free."""

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
STAGING_SIZE: Bytes = 8 * GiB  # of the installer's partition, where nothing else is said
# What Windows keeps. Its own limit is optimistic, and a full system volume installs no updates.
MARGIN_ABOVE_LIMIT: Bytes = 10 * GiB
MIN_FREE: Bytes = 64 * GiB
FREE_SHARE = 5  # one part of so many
# Buses that nothing but Windows boots from as it sees them, or that somebody may pull out.
PLAIN_BUSES = ("nvme", "sata", "ata")  # between a disk and Linux: no RAID, Storage Spaces, iSCSI or USB
UNSUITABLE_BUSES = ("spaces", "iscsi", "usb", "file backed virtual", "raid", "sd", "mmc")
_BACKUP_TABLE_SIZE: Bytes = MiB  # the second copy of the GPT is in its last sectors


@dataclass(frozen=True)
class Gap:
    """Bytes of a disk that no partition has, in whole MiB."""

    disk: str
    offset: Bytes
    size: Bytes


def recorded_disk(facts: HostFacts, name: str) -> str | None:
    """The disk, by the GUID of its table, on which winhost made a partition of this name, or began to."""
    made = if_known(lambda: facts.find(OwnPartition, {"name": name}))
    return made.disk if made is not None and made.made is not False else None


def windows_partition(facts: HostFacts) -> Instance[Partition] | None:
    """The one that Windows runs from. Raises MissingFact."""
    return next((each for each in facts.all(Partition) if each.state.boot), None)


def windows_disk(facts: HostFacts) -> Instance[Disk] | None:
    """The disk that Windows runs from. Raises MissingFact."""
    return next((each for each in facts.all(Disk) if each.state.boot), None)


def partitions_on_disk(facts: HostFacts, guid: str | None) -> list[Instance[Partition]]:
    """The partitions of a disk by the GUID of its table, in the order of their offsets. Raises MissingFact."""
    found = (each for each in facts.all(Partition) if guid is not None and each.state.disk == guid)
    return sorted(found, key=lambda each: each.state.offset)


def empty_disks(facts: HostFacts) -> list[Instance[Disk]]:
    """Plain and healthy disks, large enough for Ubuntu and its installer, on which Windows finds nothing but what it
    reserves itself. Raises MissingFact.
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
    """The free space of a GPT disk, in the order of offsets. Raises MissingFact."""
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
    """The largest gap on the disk of Windows. Raises MissingFact."""
    disk = windows_disk(facts)
    return max(gaps(facts, disk.state), key=lambda gap: gap.size, default=None) if disk else None


def min_windows_size(partition: Partition, limit: ResizeLimit) -> Bytes:
    """The size below which winhost does not shrink Windows, in whole MiB."""
    used = partition.size - limit.free
    floor = max(limit.smallest + MARGIN_ABOVE_LIMIT, used + max(MIN_FREE, partition.size // FREE_SHARE))
    return -(-floor // MiB) * MiB


def shrinkable_bytes(facts: HostFacts) -> Bytes:
    """The bytes that Windows can give of its volume. Raises MissingFact."""
    partition = windows_partition(facts)
    limit = facts.find(ResizeLimit, partition.key) if partition else None
    return max(0, partition.state.size - min_windows_size(partition.state, limit)) if partition and limit else 0


def immovable_bytes(facts: HostFacts) -> Bytes:
    """Free space that Windows could give if nothing unmovable were behind it. Raises MissingFact."""
    partition = windows_partition(facts)
    limit = facts.find(ResizeLimit, partition.key) if partition else None
    if partition is None or limit is None:
        return 0
    return max(0, limit.smallest - (partition.state.size - limit.free))


DiskCheck = Callable[[HostFacts], str | None]  # what was seen, where it is so

_MIN_FREE_ON_ESP: Bytes = 30 * MiB  # shim, GRUB and MokManager twice, some 20 MiB, and room for one update


def windows_partitions(facts: HostFacts) -> list[Instance[Partition]]:
    """The partitions of its disk. Raises MissingFact."""
    disk = windows_disk(facts)
    return partitions_on_disk(facts, disk.state.guid) if disk else []


def free_esp_bytes(facts: HostFacts) -> Bytes | None:
    """The free bytes of the one EFI system partition of Windows; None if it has none or several. Raises MissingFact."""
    guids = {each.key["partition"] for each in windows_partitions(facts) if each.state.type == EFI}
    found = [each.state.free for each in facts.all(EfiVolume) if each.key["partition"] in guids]
    return found[0] if len(found) == 1 else None


def fits_boot_loader(free: Bytes) -> bool:
    """Tell whether a boot loader fits."""
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
    """The disk of its own on which winhost has begun to make partitions for Ubuntu: it is not empty any more. Raises
    MissingFact.
    """
    efi, linux = recorded_disk(facts, OWN_EFI), recorded_disk(facts, LINUX_PARTITION)
    if efi is None or linux not in (None, efi):
        return None
    return next((each.state for each in facts.all(Disk) if each.state.guid == efi), None)


def choose_disk(facts: HostFacts, asked: str) -> Disk | None:
    """Choose the disk; None for that of Windows. asked: auto, windows, or a GUID. Raises Refusal, MissingFact."""
    if asked == "windows":
        # The rules ask this only where Ubuntu would get no other disk.
        observed = [seen for question in WINDOWS_DISK_CHECKS if (seen := question(facts))]
        if observed:
            hint = "Leave out --set disk=windows, and Ubuntu gets the empty disk."
            raise Refusal("disk.windows-unfit", "; ".join(observed), hint)
        return None
    begun = unfinished_disk(facts)
    if begun is not None and asked not in ("auto", begun.guid):
        hint = f"Undo it first (winhost rollback RUN), or go on there: --set disk={begun.guid}"
        raise Refusal("disk.not-empty", f"An EFI system partition for Ubuntu is begun on {begun.model} already", hint)
    if begun is not None:
        return begun
    empty = sorted((each.state for each in empty_disks(facts)), key=lambda disk: disk.size)
    if asked != "auto":
        return _find_empty_disk(facts, empty, asked)
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
    """Right before it formats, the host looks again at what facts do not show. Raises Refusal."""
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
