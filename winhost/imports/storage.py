"""Disks, partitions by their GUIDs (`Get-Disk` and `Get-Partition | ConvertTo-Json`), and BitLocker of a volume
(`manage-bde -protectors -get C:` in any language, and `manage-bde -status` in English).

A partition names its disk by a number of Windows alone; merged with the disks of the same machine, that becomes a GUID.

manage-bde shows the secrets that open a volume. They are never kept: a protector is read by its GUID, and its kind by
the form of what follows. In other languages only forms and GUIDs are read.
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
    observed,
    sections,
)

DISK_NUMBER = "disk number "
"""The prefix of a disk's number, which stands for the GUID of a partition's disk until the disks are known."""

# Enumerations are words, or numbers where the JSON was made without the module's own types.
_BUSES = {3: "ATA", 7: "USB", 8: "RAID", 9: "iSCSI", 10: "SAS", 11: "SATA", 15: "File Backed Virtual"}
_BUSES |= {16: "Spaces", 17: "NVMe"}
_STYLES = {0: "RAW", 1: "MBR", 2: "GPT"}
_HEALTH = {0: "healthy", 1: "warning", 2: "unhealthy", 5: "unknown"}
_GUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TOO_LARGE = 1 << 63
_MAX_TEXT = 200
_EMPTY = Unreported("the JSON does not have it")


def read_disks(text: str) -> FileObservations:
    """Read the observations in a text. Raises Misread."""
    found = {}
    for each in _objects(text):
        key = _text(each.get("UniqueId"))
        if key:
            found[key] = _disk(each)
    if not found:
        raise Misread("has no disk with a UniqueId")
    return FileObservations(resources={"Disk": found})


def read_partitions(text: str) -> FileObservations:
    """Read the observations in a text. Raises Misread."""
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
    style = _value(disk, "PartitionStyle", lambda value: _name(value, _STYLES))
    raw = isinstance(style, Observation) and style.value != "GPT"
    return {
        "model": _value(disk, "FriendlyName", _text),
        "bus": _value(disk, "BusType", lambda value: _name(value, _BUSES)),
        "size": _value(disk, "Size", _number),
        "style": style,
        "boot": _value(disk, "IsBoot", _flag),
        "system": _value(disk, "IsSystem", _flag),
        "guid": Observation(guid) if guid or raw else _EMPTY,
        "number": _value(disk, "Number", _number),
        "sector": _value(disk, "LogicalSectorSize", _number),
        "offline": _value(disk, "IsOffline", _flag),
        "read_only": _value(disk, "IsReadOnly", _flag),
        "health": _value(disk, "HealthStatus", lambda value: (_name(value, _HEALTH) or "").lower()),
    }


def _partition(partition: Mapping[str, Json]) -> State:
    number = _number(partition.get("DiskNumber"))
    letter = _text(str(partition.get("DriveLetter") or "").replace("\0", ""))
    return {
        "disk": observed(None if number is None else f"{DISK_NUMBER}{number}", _EMPTY),
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
    return observed(shape(said.get(name)), _EMPTY)


def _text(value: Json) -> str | None:
    return value.strip()[:_MAX_TEXT] if isinstance(value, str) and value.strip() else None


def _flag(value: Json) -> bool | None:
    return value if isinstance(value, bool) else None


def _number(value: Json) -> int | None:
    return value if type(value) is int and 0 <= value < _TOO_LARGE else None


def _guid(value: Json) -> str | None:
    bare = str(value or "").strip().strip("{}").lower()
    return bare if _GUID.fullmatch(bare) else None


def _name(value: Json, names: Mapping[int, str]) -> str | None:
    return names.get(value) if type(value) is int else _text(value)


# ---- BitLocker


_BRACED_GUID = r"\{([0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})\}"
PROTECTOR = re.compile(rf"^ {{4}}\S.*\r?\n {{6}}\S+\s*{_BRACED_GUID}", re.MULTILINE)
"""A protector: its kind, and in the next line its id."""
STATUS = re.compile(r"^ {4}Conversion Status: {1,40}\S", re.MULTILINE)
VOLUME = re.compile(r"^\S[^\r\n:]{0,60} ([A-Z]:) \[", re.MULTILINE)
_PASSWORD = re.compile(r"^\s*\d{6}(?:-\d{6}){7}\s*$", re.MULTILINE)
_REGISTERS = re.compile(r"^\s*(\d{1,2}(?:, \d{1,2})*)\s*$", re.MULTILINE)
_KEY_FILE = re.compile(r"\.BEK\b", re.IGNORECASE)
_ENGLISH = re.compile(r"^ {4}([A-Z][A-Za-z ]{2,30}): {1,40}(\S.*?)\s*$", re.MULTILINE)
_CONVERSIONS = {"Used Space Only Encrypted": "fully-encrypted"}
_ELSEWHERE = Unreported("manage-bde -status says it, in English")


def read_volumes(text: str) -> FileObservations:
    """Read the observations in a text. Raises Misread."""
    states = {volume[1]: _volume(section) for volume, section in sections(VOLUME, text)}
    if not states:
        raise Misread("names no volume")
    return FileObservations(resources={"BitLocker": states})


def _volume(section: str) -> State:
    if STATUS.search(section):
        return _status(dict(_ENGLISH.findall(section)))
    protectors, registers = [], set[int]()
    for head, behind in sections(PROTECTOR, section):
        block = head[0] + behind
        found = _REGISTERS.search(block)
        registers |= {int(each) for each in found[1].split(", ")} if found else set()
        protectors.append({"id": head[1].lower(), "kind": _kind(block, bound=found is not None)})
    return {
        "protectors": Observation(protectors),
        "pcrs": Observation(sorted(registers)),
        "protection": _ELSEWHERE,
        "conversion": _ELSEWHERE,
        "percentage": _ELSEWHERE,
    }


def _kind(block: str, *, bound: bool) -> str:
    if _PASSWORD.search(block) or block.lstrip().startswith("Numerical Password:"):
        return "recovery-password"
    if bound or block.lstrip().startswith("TPM"):
        return "tpm-pin" if "PIN" in block.lstrip().partition("\n")[0] else "tpm"
    return "external-key" if _KEY_FILE.search(block) else "unknown"


def _status(english: dict[str, str]) -> State:
    conversion = english.get("Conversion Status", "")
    percentage = re.match(r"(\d{1,3})(?:[.,]\d+)?%", english.get("Percentage Encrypted", ""))
    protection = {"Protection On": "on", "Protection Off": "off"}.get(english.get("Protection Status", ""))
    return {
        "conversion": observed(_CONVERSIONS.get(conversion, conversion.lower().replace(" ", "-")), _ELSEWHERE),
        "percentage": observed(int(percentage[1]) if percentage else None, _ELSEWHERE),
        "protection": observed(protection, _ELSEWHERE),
        "protectors": Unreported("manage-bde -protectors -get says it"),
        "pcrs": Unreported("manage-bde -protectors -get says it"),
    }
