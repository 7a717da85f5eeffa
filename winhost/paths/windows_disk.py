"""The properties of the disk of Windows that prevent Ubuntu beside it. A disk of its own avoids them."""

from collections.abc import Callable, Sequence

from winhost.model.facts import Instance
from winhost.model.units import Bytes, MiB
from winhost.paths.disk_space import on_disk, windows_disk
from winhost.resources.host import HostFacts
from winhost.resources.windows.partition import DYNAMIC, EFI, STORAGE_SPACES, Partition
from winhost.resources.windows.read_only import EfiVolume

Question = Callable[[HostFacts], str | None]  # what was seen, where it is so

_LEAST_ON_ESP: Bytes = 30 * MiB  # shim, GRUB and MokManager twice, some 20 MiB, and room for one update


def of_windows(facts: HostFacts) -> list[Instance[Partition]]:
    """The partitions of its disk. Raises MissingFact."""
    disk = windows_disk(facts)
    return on_disk(facts, disk.state.guid) if disk else []


def free_on_esp(facts: HostFacts) -> Bytes | None:
    """The free bytes of the one EFI system partition of Windows; None if it has none or several. Raises MissingFact."""
    guids = {each.key["partition"] for each in of_windows(facts) if each.state.type == EFI}
    found = [each.state.free for each in facts.all(EfiVolume) if each.key["partition"] in guids]
    return found[0] if len(found) == 1 else None


def has_room_on_esp(free: Bytes) -> bool:
    """Tell whether a boot loader fits."""
    return free >= _LEAST_ON_ESP


def dynamic_disk(facts: HostFacts) -> str | None:
    """The disk of Windows is a dynamic disk, or a member of Storage Spaces."""
    kinds = {each.state.type for each in of_windows(facts)}
    if not kinds & {*DYNAMIC, STORAGE_SPACES}:
        return None
    kind = "Storage Spaces" if STORAGE_SPACES in kinds else "the Logical Disk Manager"
    return f"partitions of {kind} on the disk of Windows"


def several_efi_partitions(facts: HostFacts) -> str | None:
    """The disk of Windows has no EFI system partition, or several of them."""
    disk = windows_disk(facts)
    found = [each for each in of_windows(facts) if each.state.type == EFI]
    if disk is None or disk.state.style != "GPT" or len(found) == 1:
        return None
    return f"{len(found)} on the disk of Windows"


def efi_partition_full(facts: HostFacts) -> str | None:
    """The EFI system partition has no room for Ubuntu's boot loader."""
    free = free_on_esp(facts)
    if free is None or has_room_on_esp(free):
        return None
    return f"{free // MiB} MiB free, {_LEAST_ON_ESP // MiB} MiB needed"


UNFIT: Sequence[Question] = (dynamic_disk, several_efi_partitions, efi_partition_full)
