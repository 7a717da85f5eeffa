"""`Get-Disk | ConvertTo-Json` and `Get-Partition | ConvertTo-Json`: disks, and partitions by their GUIDs.

A partition names its disk by a number of Windows alone; merged with the disks of the same machine, that becomes a GUID.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from winhost.core.answers import Json
from winhost.imports.observation import (
    FileObservations,
    Misread,
    Observation,
    State,
    Unreported,
    Value,
    json_value,
    told,
)

DISK_NUMBER = "disk number "
"""The prefix of a disk's number, which stands for the GUID of a partition's disk until the disks are known."""

# Enumerations are words, or numbers where the JSON was made without the module's own types.
_BUSES = {3: "ATA", 7: "USB", 8: "RAID", 9: "iSCSI", 10: "SAS", 11: "SATA", 15: "File Backed Virtual"}
_BUSES |= {16: "Spaces", 17: "NVMe"}
_STYLES = {0: "RAW", 1: "MBR", 2: "GPT"}
_HEALTH = {0: "healthy", 1: "warning", 2: "unhealthy", 5: "unknown"}
_GUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LARGEST = 1 << 63
_LONGEST = 200
_EMPTY = Unreported("the JSON does not have it")


def read_disks(text: str) -> FileObservations:
    """Raises Misread."""
    found = {}
    for each in _objects(text):
        key = _text(each.get("UniqueId"))
        if key:
            found[key] = _disk(each)
    if not found:
        raise Misread("has no disk with a UniqueId")
    return FileObservations(resources={"Disk": found})


def read_partitions(text: str) -> FileObservations:
    """Raises Misread."""
    found = {guid: _partition(each) for each in _objects(text) if (guid := _guid(each.get("Guid")))}
    if not found:
        raise Misread("has no partition with a GUID: only those of GPT disks have one")
    return FileObservations(resources={"Partition": found}, advice="Get-Disk | ConvertTo-Json tells of their disks")


def _objects(text: str) -> Iterator[Mapping[str, Json]]:
    document = json_value(text)
    listed = document.get("value", document) if isinstance(document, dict) else document
    yield from (each for each in (listed if isinstance(listed, list) else [listed]) if isinstance(each, dict))


def _disk(disk: Mapping[str, Json]) -> State:
    guid = _guid(disk.get("Guid"))
    style = _value(disk, "PartitionStyle", lambda value: _word(value, _STYLES))
    raw = isinstance(style, Observation) and style.value != "GPT"
    return {
        "model": _value(disk, "FriendlyName", _text),
        "bus": _value(disk, "BusType", lambda value: _word(value, _BUSES)),
        "size": _value(disk, "Size", _number),
        "style": style,
        "boot": _value(disk, "IsBoot", _flag),
        "system": _value(disk, "IsSystem", _flag),
        "guid": Observation(guid) if guid or raw else _EMPTY,
        "number": _value(disk, "Number", _number),
        "sector": _value(disk, "LogicalSectorSize", _number),
        "offline": _value(disk, "IsOffline", _flag),
        "read_only": _value(disk, "IsReadOnly", _flag),
        "health": _value(disk, "HealthStatus", lambda value: (_word(value, _HEALTH) or "").lower()),
    }


def _partition(partition: Mapping[str, Json]) -> State:
    number = _number(partition.get("DiskNumber"))
    letter = _text(str(partition.get("DriveLetter") or "").replace("\0", ""))
    return {
        "disk": told(None if number is None else f"{DISK_NUMBER}{number}", _EMPTY),
        "number": _value(partition, "PartitionNumber", _number),
        "offset": _value(partition, "Offset", _number),
        "size": _value(partition, "Size", _number),
        "type": _value(partition, "GptType", _guid),
        "letter": Observation(letter),
        "boot": _value(partition, "IsBoot", _flag),
        "system": _value(partition, "IsSystem", _flag),
        "hidden": _value(partition, "IsHidden", _flag),
        "no_letter": _value(partition, "NoDefaultDriveLetter", _flag),
    }


def _value(said: Mapping[str, Json], name: str, shape: Callable[[Any], Json]) -> Value:
    return told(shape(said.get(name)), _EMPTY)


def _text(value: Json) -> str | None:
    return value.strip()[:_LONGEST] if isinstance(value, str) and value.strip() else None


def _flag(value: Json) -> bool | None:
    return value if isinstance(value, bool) else None


def _number(value: Json) -> int | None:
    return value if type(value) is int and 0 <= value < _LARGEST else None


def _guid(value: Json) -> str | None:
    bare = str(value or "").strip().strip("{}").lower()
    return bare if _GUID.fullmatch(bare) else None


def _word(value: Json, words: Mapping[int, str]) -> str | None:
    return words.get(value) if type(value) is int else _text(value)
