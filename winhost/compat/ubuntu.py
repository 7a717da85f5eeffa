"""Judges of dual-boot (Ubuntu beside Windows) and bare-metal (Ubuntu instead of Windows)."""

from collections import Counter

from winhost.compat.rule import finding
from winhost.core.answers import if_known
from winhost.model.reason import Finding
from winhost.model.units import Bytes, MiB, about
from winhost.paths import disks
from winhost.paths.disks import (
    MIN_LINUX_SIZE,
    DiskCheck,
    empty_disks,
    fits_boot_loader,
    free_esp_bytes,
    gets_own_disk,
    immovable_bytes,
    largest_gap,
    partitions_on_disk,
    recorded_disk,
    shrinkable_bytes,
    windows_disk,
    windows_partition,
    windows_partitions,
)
from winhost.resources.host import HostFacts
from winhost.resources.windows.boot_entries import EfiBackup, FastStartup
from winhost.resources.windows.disks import LINUX_PARTITION, RECOVERY
from winhost.resources.windows.read_only import Disk, ResizeLimit, StorageController

RAID_DRIVERS = ("iastor", "iavroc", "rcraid", "rcbottom")
_COMFORTABLE_ESP_SPACE: Bytes = 100 * MiB
_NOTABLE_SPACE: Bytes = 10 << 30  # less than this is not reported as held back
_HOLDER_NAMES = {
    "page-file": "the page file",
    "hibernation-file": "the hibernation file",
    "shadow-copies": "shadow copies",
    "wsl-disks": "perhaps disk images of WSL, which runs (unverified)",
}


def raid_mode(facts: HostFacts) -> str | None:
    """The disk of Windows is behind a controller in RAID, RST or VMD mode."""
    disks = [disk.state for disk in facts.all(Disk) if disk.state.system or disk.state.boot]
    if not any(disk.bus.casefold() == "raid" for disk in disks):
        return None
    raid = [each.state for each in facts.all(StorageController) if each.state.mode == "raid"]
    return ", ".join(f"{each.name} (driver {each.service})" for each in raid) or "the system disk is on RAID"


def firmware_raid(facts: HostFacts) -> str | None:
    """The disk of Windows is behind RST, VMD or AMD's RAID, which only their Windows driver can assemble."""
    controllers = raid_mode(facts)
    services = [str(each.state.service).casefold() for each in facts.all(StorageController)]
    return controllers if any(service.startswith(RAID_DRIVERS) for service in services) else None


def cloned_disk(facts: HostFacts) -> str | None:
    """Two disks have the same GUID, so that they cannot be told apart."""
    times = Counter(disk.state.guid for disk in facts.all(Disk) if disk.state.guid)
    twice = [guid for guid, count in times.items() if count > 1]
    return f"several disks with the GUID {', '.join(twice)}" if twice else None


def unhealthy_disk(facts: HostFacts) -> str | None:
    """Windows reports its own disk as not healthy, or as read-only."""
    disk = windows_disk(facts)
    if disk is None or (disk.state.health == "healthy" and not disk.state.read_only):
        return None
    return f"{disk.state.model}: {disk.state.health}{', read-only' if disk.state.read_only else ''}"


# --- Next to Windows -----------------------------------------------------------------------------------------------


def dynamic_disk(facts: HostFacts) -> str | None:
    return _unless_own_disk(facts, disks.dynamic_disk)


def several_efi_partitions(facts: HostFacts) -> str | None:
    return _unless_own_disk(facts, disks.several_efi_partitions)


def efi_partition_full(facts: HostFacts) -> str | None:
    return _unless_own_disk(facts, disks.efi_partition_full)


def _unless_own_disk(facts: HostFacts, question: DiskCheck) -> str | None:
    """Answer a question about the disk of Windows only where Ubuntu is installed onto it."""
    return None if gets_own_disk(facts) else question(facts)


def efi_partition_small(facts: HostFacts) -> str | None:
    """The EFI system partition has room for the boot loader and little else."""
    free = None if gets_own_disk(facts) else free_esp_bytes(facts)
    if free is not None and fits_boot_loader(free) and free < _COMFORTABLE_ESP_SPACE:
        return f"{free // MiB} MiB free"
    return None


def esp_changed_since_backup(facts: HostFacts) -> str | None:
    """Files of the EFI system partition differ from its backup: an installer or an update changed them."""
    copies = [each.state for each in facts.all(EfiBackup) if each.state.kept]
    files = [file for copy in copies for file in (*copy.changed, *copy.added)]
    return ", ".join(files) if files else None


def too_little_space(facts: HostFacts) -> str | None:
    """No disk is empty, no free space is large enough, and Windows cannot give up enough."""
    disk = windows_disk(facts)
    if disk is None or disk.state.style != "GPT" or recorded_disk(facts, LINUX_PARTITION) is not None:
        return None
    if _has_free_space(facts) or shrinkable_bytes(facts) >= MIN_LINUX_SIZE:
        return None
    needed = f"{about(MIN_LINUX_SIZE)} needed"
    return f"Windows can give {about(shrinkable_bytes(facts))}, {needed}{_describe_held_back(facts)}"


def windows_must_shrink(facts: HostFacts) -> str | None:
    """No other disk is empty and no space is free, so Ubuntu's space comes from the Windows volume."""
    if (
        recorded_disk(facts, LINUX_PARTITION) is not None
        or _has_free_space(facts)
        or shrinkable_bytes(facts) < MIN_LINUX_SIZE
    ):
        return None
    return f"Windows can give {about(shrinkable_bytes(facts))}{_describe_held_back(facts)}"


def free_space(facts: HostFacts) -> Finding | None:
    """There is room without a change to Windows: an empty disk, or free space on its own."""
    empty = [f"{disk.state.model}, {about(disk.state.size)}" for disk in empty_disks(facts)]
    if empty:
        return finding("dual-boot.empty-disk", "; ".join(empty))
    gap = largest_gap(facts)
    if gap and gap.size >= MIN_LINUX_SIZE:
        return finding("dual-boot.free-space", f"{about(gap.size)} at {about(gap.offset)} of the Windows disk")
    return None


def recovery_behind_windows(facts: HostFacts) -> str | None:
    """The recovery partition follows Windows: with Ubuntu between them, an update cannot enlarge it."""
    windows = windows_partition(facts)
    if windows is None or _has_free_space(facts):
        return None
    behind = [
        each for each in windows_partitions(facts) if each.state.offset >= windows.state.offset + windows.state.size
    ]
    if behind and behind[0].state.type == RECOVERY:
        return f"{behind[0].state.size // MiB} MiB behind Windows"
    return None


def hibernation_enabled(facts: HostFacts) -> str | None:
    """Hibernation or Fast Startup leave the volumes of Windows in use while it is off."""
    sleep = facts.the(FastStartup)
    if not sleep.hibernation:
        return None
    return "hibernation and Fast Startup are on" if sleep.fast_startup else "hibernation is on"


# --- Instead of Windows --------------------------------------------------------------------------------------------


def several_disks(facts: HostFacts) -> str | None:
    """The host has several disks: the one to be wiped has to be named, and the others are kept."""
    disks = [disk for disk in facts.all(Disk) if disk.state.bus.casefold() not in ("usb", "iscsi")]
    if len(disks) < 2:
        return None
    return ", ".join(f"{disk.state.model} {about(disk.state.size)}" for disk in disks)


def largest_disk_without_windows(facts: HostFacts) -> str | None:
    """The installer's default wipes the largest disk, which here is not the one of Windows."""
    largest = max(facts.all(Disk), key=lambda disk: disk.state.size, default=None)
    if largest is None or largest.state.boot:
        return None
    held = sum(each.state.size for each in partitions_on_disk(facts, largest.state.guid))
    content = f"{about(held)} in partitions" if held else "no partitions"
    return f"{largest.state.model} {about(largest.state.size)}, {content}"


# --- Shared --------------------------------------------------------------------------------------------------------


def _has_free_space(facts: HostFacts) -> bool:
    gap = largest_gap(facts)
    return gets_own_disk(facts) or (gap is not None and gap.size >= MIN_LINUX_SIZE)


def _describe_held_back(facts: HostFacts) -> str:
    """Describe what prevents Windows from giving up more, if that is much."""
    back, limits = immovable_bytes(facts), [each.state for each in facts.all(ResizeLimit)]
    if back < _NOTABLE_SPACE or not limits:
        return ""
    holders = [_HOLDER_NAMES.get(each, each) for each in if_known(lambda: limits[0].holders) or ()]
    by = limits[0].last_held_by or ", ".join(holders) or "something unmovable"
    return f"; {about(back)} more are free and held by {by}"
