"""Whether Ubuntu gets a disk of its own, and which one."""

from winhost.model.refusal import Refusal
from winhost.model.units import about
from winhost.paths.disk_space import LEAST_FOR_LINUX, empty_disks
from winhost.resources.host import HostFacts
from winhost.resources.windows.disk.resource import Disk

_BESIDE = "Or go beside Windows: --set disk=windows."


def chosen_disk(facts: HostFacts, asked: str) -> Disk | None:
    """None for that of Windows. asked: auto, windows, or the GUID of an empty disk. Raises Refusal, MissingFact."""
    if asked == "windows":
        return None
    empty = [each.state for each in empty_disks(facts)]
    if asked != "auto":
        return _named(facts, empty, asked)
    large = sorted((disk for disk in empty if disk.size > LEAST_FOR_LINUX), key=lambda disk: disk.size)
    tabled = [disk for disk in large if disk.style == "GPT"]
    if large and not tabled:
        raise Refusal(
            "disk.no-table",
            f"{large[-1].model}, {about(large[-1].size)}, is empty and has no partition table",
            f"Give it one on the host: Initialize-Disk -Number {large[-1].number} -PartitionStyle GPT. {_BESIDE}",
        )
    return tabled[-1] if tabled else None


def _named(facts: HostFacts, empty: list[Disk], guid: str) -> Disk:
    those = [each.state for each in facts.all(Disk) if each.state.guid == guid]
    if len(those) != 1:
        raise Refusal(
            "disk.not-there",
            f"{len(those)} disks of the host have the GUID {guid}, and one is needed",
            f"winhost detect shows the disks with their GUIDs. {_BESIDE}",
        )
    if those[0] not in empty:
        hint = "Name an empty one, or go beside Windows: --set disk=windows."
        raise Refusal("disk.not-empty", f"{those[0].model} is not empty, or not a plain disk", hint)
    return those[0]
