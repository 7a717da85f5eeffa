"""`Get-ComputerInfo`, as JSON or as its own list: the system, its firmware, processors and memory, but no GPUs."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from winhost.core.answers import Json
from winhost.imports.observation import MOST_ELEMENTS, FileObservations, Misread, Observation, State, Unreported, Value
from winhost.imports.systeminfo import edition_of_sku
from winhost.model.units import KiB

LIST = re.compile(r"^(?:OsOperatingSystemSKU|WindowsEditionId|CsTotalPhysicalMemory) {1,40}: \S", re.MULTILINE)
"""The list that Get-ComputerInfo shows by itself."""
_ITEM = re.compile(r"^([A-Z]\w{1,80}) {1,60}: ?(.*)$")
_LISTS = ("OsMuiLanguages", "DeviceGuardAvailableSecurityProperties", "CsProcessors")
_WORDS: Mapping[str, Json] = {"True": True, "False": False, "": None}
_TOO_LARGE = 1 << 63  # Windows counts in 64 bits at most
_EMPTY = Unreported("Get-ComputerInfo left it empty")

# Enumerations are numbers in JSON, or words where somebody asked for words.
_SKUS = {"enterpriseedition": 4, "standardserveredition": 7, "datacenterserveredition": 8, "windowshome": 101}
_PRODUCT_TYPES = {"workstation": 1, "domaincontroller": 2, "server": 3}
_SECURITY = {
    "basevirtualizationsupport": 1,
    "secureboot": 2,
    "dmaprotection": 3,
    "securememoryoverwrite": 4,
    "ueficodereadonly": 5,
    "smmsecuritymitigations": 6,
    "modebasedexecutioncontrol": 7,
}
# Windows reads its product type from this value when it starts, so each tells the other.
_PRODUCT_OPTIONS = {1: "WinNT", 2: "LanmanNT", 3: "ServerNT"}


def read(text: str) -> FileObservations:
    """Raises Misread."""
    info = _listed(text) if LIST.search(text) else _document(text)
    host = _text(info, "CsName")
    return FileObservations(
        host=host.value if isinstance(host, Observation) else None,
        resources={
            "OperatingSystem": {"": _system(info)},
            "Firmware": {"": _firmware(info)},
            "Memory": {"": _memory(info)},
            **_processors(info),
        },
    )


def _listed(text: str) -> Mapping[str, Json]:
    """The list as the JSON has it. A long value goes on in indented lines; of processors it has only the names."""
    written: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        found = _ITEM.match(line)
        if found:
            name = found[1]
            written[name] = found[2].strip()
        elif name and line.startswith("    "):
            written[name] += " " + line.strip()
        else:
            name = ""
    info: dict[str, Json] = {name: _WORDS.get(value, value) for name, value in written.items()}
    for name in _LISTS:
        # PowerShell shows the first four of a list, and dots for the others.
        within = written.get(name, "").strip("{}")
        whole = within and not within.endswith(("...", "…"))
        info[name] = [each.strip() for each in within.split(",")] if whole else None
    processors = info.pop("CsProcessors")
    if isinstance(processors, list):
        info["CsProcessors"] = [{"Name": each} for each in processors]
    return info


def _document(text: str) -> Mapping[str, Json]:
    if sum(map(text.count, "[{,")) > MOST_ELEMENTS:
        raise Misread(f"holds more than {MOST_ELEMENTS:,} values, which Get-ComputerInfo does not write")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        fault = str(error) if isinstance(error, json.JSONDecodeError) else "nested too deeply, or a number too long"
    else:
        only = document[0] if isinstance(document, list) and len(document) == 1 else document
        if isinstance(only, dict):
            return only
        fault = "not one object"
    raise Misread(f"is not the JSON of one computer: {fault}")


def _system(info: Mapping[str, Json]) -> State:
    product_type = _number(info, "OsProductType", _PRODUCT_TYPES)
    sku, edition = _number(info, "OsOperatingSystemSKU", _SKUS), _text(info, "WindowsEditionId")
    if isinstance(sku, Observation) and not isinstance(edition, Observation):  # somebody pasted a part of it
        edition = edition_of_sku(sku.value)
    return {
        "hostname": _text(info, "CsName"),
        "caption": _text(info, "OsName"),
        "product_type": product_type,
        "sku": sku,
        "edition_id": edition,
        "installation_type": _text(info, "WindowsInstallationType"),
        "product_options": _changed(product_type, _PRODUCT_OPTIONS.get),
        "build": _number(info, "OsBuildNumber"),
        "revision": _number(info, "WindowsUBR"),
        "display_version": _text(info, "OSDisplayVersion"),
        "language": _first(info, "OsMuiLanguages"),
        "architecture": _changed(_text(info, "OsArchitecture"), _architecture),
    }


def _architecture(written: str) -> str | None:
    """The architecture as PROCESSOR_ARCHITECTURE names it. Windows writes `64-bit` in its own language, after `ARM`."""
    if "64" not in written:
        return None
    return "ARM64" if "arm" in written.casefold() else "AMD64"


def _firmware(info: Mapping[str, Json]) -> State:
    present = _flag(info, "HyperVisorPresent")
    return {
        "manufacturer": _text(info, "CsManufacturer"),
        "model": _text(info, "CsModel"),
        "bios_version": _text(info, "BiosSMBIOSBIOSVersion"),
        "serial": _text(info, "BiosSeralNumber"),  # so it is called there
        "hypervisor_present": present if isinstance(present, Observation) else _flag(info, "CsHypervisorPresent"),
        "virtualization_enabled": _flag(info, "HyperVRequirementVirtualizationFirmwareEnabled"),
        "second_level_translation": _flag(info, "HyperVRequirementSecondLevelAddressTranslation"),
        "security_properties": _security(info),
    }


def _security(info: Mapping[str, Json]) -> Value:
    listed = info.get("DeviceGuardAvailableSecurityProperties")
    if not isinstance(listed, list):
        return _EMPTY
    numbers = [_whole(item, _SECURITY) for item in listed]
    return (
        Observation(numbers)
        if None not in numbers
        else Unreported("Get-ComputerInfo has a word there that is not known")
    )


def _memory(info: Mapping[str, Json]) -> State:
    free = _number(info, "OsFreePhysicalMemory")
    return {"total": _number(info, "CsTotalPhysicalMemory"), "free": _changed(free, lambda kib: kib * KiB)}


def _processors(info: Mapping[str, Json]) -> dict[str, Mapping[str, State]]:
    listed = info.get("CsProcessors")
    sockets = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    # In the order of Win32_Processor, which numbers its device ids.
    return {"Processor": {f"CPU{n}": _processor(each) for n, each in enumerate(sockets)}} if sockets else {}


def _processor(socket: Mapping[str, Json]) -> State:
    return {
        "name": _text(socket, "Name"),
        "manufacturer": _text(socket, "Manufacturer"),
        "cores": _number(socket, "NumberOfCores"),
        "threads": _number(socket, "NumberOfLogicalProcessors"),
    }


# ---- single values


def _text(info: Mapping[str, Json], name: str) -> Value:
    value = info.get(name)
    return Observation(value.strip()) if isinstance(value, str) and value.strip() else _EMPTY


def _flag(info: Mapping[str, Json], name: str) -> Value:
    value = info.get(name)
    return Observation(value) if isinstance(value, bool) else _EMPTY


def _number(info: Mapping[str, Json], name: str, words: Mapping[str, int] | None = None) -> Value:
    value = _whole(info.get(name), words or {})
    return _EMPTY if value is None else Observation(value)


def _whole(value: Json, words: Mapping[str, int]) -> int | None:
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdecimal() and len(value) < 19 else words.get(value.casefold())
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _TOO_LARGE else None


def _first(info: Mapping[str, Json], name: str) -> Value:
    value = info.get(name)
    first = value[0] if isinstance(value, list) and value else value
    return _text({name: first}, name)


def _changed(value: Value, change: Callable[[Any], Json]) -> Value:
    """The value in the shape that facts have, or silence where it has none."""
    if isinstance(value, Unreported):
        return value
    changed = change(value.value)
    return (
        Unreported(f"Get-ComputerInfo says {value.value!r}, which is not known")
        if changed is None
        else Observation(changed)
    )
