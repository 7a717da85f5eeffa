"""Find room for Linux on a host's disks: free space, empty disks, and how much Windows can give."""

from collections.abc import Iterator

from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass
from winhost.model.facts import Instance
from winhost.model.units import Bytes, GiB, MiB
from winhost.resources.host import HostFacts
from winhost.resources.windows.own_partition import OwnPartition
from winhost.resources.windows.partition import RESERVED, Partition
from winhost.resources.windows.read_only import Disk, ResizeLimit

LEAST_FOR_LINUX: Bytes = 64 * GiB  # Ubuntu with driver, container engine, one image of vLLM and one small model
EFI_SIZE: Bytes = GiB  # of the EFI system partition on a disk of its own
STAGING_SIZE: Bytes = 8 * GiB  # of the installer's partition, where nothing else is said
# What Windows keeps. Its own limit is optimistic, and a full system volume installs no updates.
ABOVE_ITS_LIMIT: Bytes = 10 * GiB
LEAST_FREE: Bytes = 64 * GiB
FREE_SHARE = 5  # one part of so many
# Buses that nothing but Windows boots from as it sees them, or that somebody may pull out.
PLAIN_BUSES = ("nvme", "sata", "ata")  # between a disk and Linux: no RAID, Storage Spaces, iSCSI or USB
NOT_PLAIN = ("spaces", "iscsi", "usb", "file backed virtual", "raid", "sd", "mmc")
_TABLE_AT_THE_END: Bytes = MiB  # the second copy of the GPT is in its last sectors


@dataclass(frozen=True)
class Gap:
    """Bytes of a disk that no partition has, in whole MiB."""

    disk: str
    offset: Bytes
    size: Bytes


def place_of(facts: HostFacts, name: str) -> str | None:
    """The disk, by the GUID of its table, on which winhost made a partition of this name, or began to."""
    try:
        made = facts.of(OwnPartition, {"name": name})
    except MissingFact:
        return None
    return made.disk if made is not None and made.made is not False else None


def windows_partition(facts: HostFacts) -> Instance[Partition] | None:
    """The one that Windows runs from. Raises MissingFact."""
    return next((each for each in facts.all(Partition) if each.state.boot), None)


def windows_disk(facts: HostFacts) -> Instance[Disk] | None:
    """The disk that Windows runs from. Raises MissingFact."""
    return next((each for each in facts.all(Disk) if each.state.boot), None)


def on_disk(facts: HostFacts, guid: str | None) -> list[Instance[Partition]]:
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
    if disk.size < LEAST_FOR_LINUX + EFI_SIZE + STAGING_SIZE + 2 * MiB:  # the table is at both ends
        return False
    kinds = {each.state.type for each in on_disk(facts, disk.guid)}
    return disk.style == "RAW" or (disk.style == "GPT" and not kinds - {RESERVED})


def gaps(facts: HostFacts, disk: Disk) -> Iterator[Gap]:
    """The free space of a GPT disk, in the order of offsets. Raises MissingFact."""
    if disk.style != "GPT" or disk.guid is None:
        return
    begin = MiB
    for each in on_disk(facts, disk.guid):
        yield from _gap(disk.guid, begin, each.state.offset)
        begin = max(begin, each.state.offset + each.state.size)
    yield from _gap(disk.guid, begin, disk.size - _TABLE_AT_THE_END)


def _gap(disk: str, begin: Bytes, end: Bytes) -> Iterator[Gap]:
    begin, end = -(-begin // MiB) * MiB, end // MiB * MiB
    if end > begin:
        yield Gap(disk, begin, end - begin)


def largest_gap(facts: HostFacts) -> Gap | None:
    """The largest gap on the disk of Windows. Raises MissingFact."""
    disk = windows_disk(facts)
    return max(gaps(facts, disk.state), key=lambda gap: gap.size, default=None) if disk else None


def floor_of_windows(partition: Partition, limit: ResizeLimit) -> Bytes:
    """The size below which winhost does not shrink Windows, in whole MiB."""
    used = partition.size - limit.free
    floor = max(limit.smallest + ABOVE_ITS_LIMIT, used + max(LEAST_FREE, partition.size // FREE_SHARE))
    return -(-floor // MiB) * MiB


def can_give(facts: HostFacts) -> Bytes:
    """The bytes that Windows can give of its volume. Raises MissingFact."""
    partition = windows_partition(facts)
    limit = facts.of(ResizeLimit, partition.key) if partition else None
    return max(0, partition.state.size - floor_of_windows(partition.state, limit)) if partition and limit else 0


def held_back(facts: HostFacts) -> Bytes:
    """Free space that Windows could give if nothing unmovable were behind it. Raises MissingFact."""
    partition = windows_partition(facts)
    limit = facts.of(ResizeLimit, partition.key) if partition else None
    if partition is None or limit is None:
        return 0
    return max(0, limit.smallest - (partition.state.size - limit.free))
