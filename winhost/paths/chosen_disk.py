"""Choose the disk that Ubuntu is installed on: one of its own, or that of Windows."""

from winhost.model.refusal import Refusal
from winhost.model.units import about
from winhost.paths.disk_space import empty_disks, place_of
from winhost.paths.windows_disk import UNFIT
from winhost.resources.host import HostFacts
from winhost.resources.windows.own_partition import LINUX_PARTITION, OWN_EFI
from winhost.resources.windows.read_only import Disk

_BESIDE = "Or go beside Windows: --set disk=windows."


def gets_own_disk(facts: HostFacts) -> bool:
    """Tell whether Ubuntu has a disk of its own, or gets one by default. Raises MissingFact."""
    return begun_disk(facts) is not None or (place_of(facts, LINUX_PARTITION) is None and bool(empty_disks(facts)))


def begun_disk(facts: HostFacts) -> Disk | None:
    """The disk of its own on which winhost has begun with a place for Ubuntu: it is not empty any more. Raises
    MissingFact.
    """
    efi, linux = place_of(facts, OWN_EFI), place_of(facts, LINUX_PARTITION)
    if efi is None or linux not in (None, efi):
        return None
    return next((each.state for each in facts.all(Disk) if each.state.guid == efi), None)


def chosen_disk(facts: HostFacts, asked: str) -> Disk | None:
    """None for that of Windows. asked: auto, windows, or the GUID of an empty disk. Raises Refusal, MissingFact."""
    if asked == "windows":
        _refuse_unfit(facts)
        return None
    begun = begun_disk(facts)
    if begun is not None and asked not in ("auto", begun.guid):
        hint = f"Take it back first (winhost rollback RUN), or go on there: --set disk={begun.guid}"
        raise Refusal("disk.not-empty", f"An EFI system partition for Ubuntu is begun on {begun.model} already", hint)
    if begun is not None:
        return begun
    empty = sorted((each.state for each in empty_disks(facts)), key=lambda disk: disk.size)
    if asked != "auto":
        return _named(facts, empty, asked)
    tabled = [disk for disk in empty if disk.style == "GPT"]
    if empty and not tabled:
        raise Refusal(
            "disk.no-table",
            f"Windows finds no partition table on {empty[-1].model}, {about(empty[-1].size)}",
            "If nothing of another system is on it (LVM, LUKS, ZFS, RAID), give it one on the host: "
            f"Initialize-Disk -Number {empty[-1].number} -PartitionStyle GPT. {_BESIDE}",
        )
    return tabled[-1] if tabled else None


def _refuse_unfit(facts: HostFacts) -> None:
    """The rules ask this only where Ubuntu would get no other disk. Raises Refusal."""
    observed = [seen for question in UNFIT if (seen := question(facts))]
    if observed:
        hint = "Leave out --set disk=windows, and Ubuntu gets the empty disk."
        raise Refusal("disk.windows-unfit", "; ".join(observed), hint)


def _named(facts: HostFacts, empty: list[Disk], guid: str) -> Disk:
    those = [each.state for each in facts.all(Disk) if each.state.guid == guid]
    if len(those) != 1:
        raise Refusal(
            "disk.not-there",
            f"{len(those)} disks of the host have the GUID {guid}, and one is needed",
            f"winhost detect HOST -o wide shows the disks with their GUIDs. {_BESIDE}",
        )
    if those[0] not in empty:
        hint = "Name an empty one, or go beside Windows: --set disk=windows."
        what = f"{those[0].model} is not empty, too small, not healthy, or not a plain disk"
        raise Refusal("disk.not-empty", what, hint)
    return those[0]
