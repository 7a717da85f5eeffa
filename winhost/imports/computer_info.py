"""`Get-ComputerInfo`, as JSON or as its own list: the system, its firmware, processors and memory, but no GPUs."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from winhost.core.answers import Json
from winhost.imports.observation import (
    FileObservations,
    Misread,
    Observation,
    State,
    Unreported,
    Value,
    format_list,
    json_value,
    observed,
)
from winhost.imports.systeminfo import edition_of_sku
from winhost.model.units import KiB

LIST = re.compile(r"^(?:OsOperatingSystemSKU|WindowsEditionId|CsTotalPhysicalMemory) {1,40}: \S", re.MULTILINE)
"""The list that Get-ComputerInfo shows by itself."""
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
    """Read the observations in a text. Raises Misread."""
    if LIST.search(text):
        info = _listed(text)
    else:
        document = json_value(text)
        only = document[0] if isinstance(document, list) and len(document) == 1 else document
        if not isinstance(only, dict):
            raise Misread("is not the JSON of one computer: not one object")
        info = only
    host = _text(info, "CsName")
    free = _number(info, "OsFreePhysicalMemory")
    memory = {"total": _number(info, "CsTotalPhysicalMemory"), "free": _changed(free, lambda kib: kib * KiB)}
    listed = info.get("CsProcessors")
    sockets = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    processors: dict[str, State] = {
        f"CPU{number}": {  # in the order of Win32_Processor, which numbers its device ids
            "name": _text(each, "Name"),
            "manufacturer": _text(each, "Manufacturer"),
            "cores": _number(each, "NumberOfCores"),
            "threads": _number(each, "NumberOfLogicalProcessors"),
        }
        for number, each in enumerate(sockets)
    }
    return FileObservations(
        host=host.value if isinstance(host, Observation) else None,
        resources={
            "OperatingSystem": {"": _system(info)},
            "Firmware": {"": _firmware(info)},
            "Memory": {"": memory},
            **({"Processor": processors} if processors else {}),
        },
    )


def _listed(text: str) -> Mapping[str, Json]:
    """Return the list as the JSON has it, but of processors it has only the names."""
    written = dict(format_list(text, " "))
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


def _system(info: Mapping[str, Json]) -> State:
    product_type, languages = _number(info, "OsProductType", _PRODUCT_TYPES), info.get("OsMuiLanguages")
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
        "language": _text({"first": languages[0] if isinstance(languages, list) and languages else languages}, "first"),
        "architecture": _changed(_text(info, "OsArchitecture"), _architecture),
    }


def _architecture(written: str) -> str | None:
    """Return the architecture as PROCESSOR_ARCHITECTURE names it. Windows writes `64-bit` in its own language, after
    `ARM`.
    """
    if "64" not in written:
        return None
    return "ARM64" if "arm" in written.casefold() else "AMD64"


def _firmware(info: Mapping[str, Json]) -> State:
    present = _flag(info, "HyperVisorPresent")
    listed = info.get("DeviceGuardAvailableSecurityProperties")
    security: Value = _EMPTY
    if isinstance(listed, list):
        numbers = [_whole_number(item, _SECURITY) for item in listed]
        unknown = Unreported("Get-ComputerInfo has a word there that is not known")
        security = observed(None if None in numbers else numbers, unknown)
    return {
        "manufacturer": _text(info, "CsManufacturer"),
        "model": _text(info, "CsModel"),
        "bios_version": _text(info, "BiosSMBIOSBIOSVersion"),
        "serial": _text(info, "BiosSeralNumber"),  # so it is called there
        "hypervisor_present": present if isinstance(present, Observation) else _flag(info, "CsHypervisorPresent"),
        "virtualization_enabled": _flag(info, "HyperVRequirementVirtualizationFirmwareEnabled"),
        "second_level_translation": _flag(info, "HyperVRequirementSecondLevelAddressTranslation"),
        "security_properties": security,
    }


# ---- single values


def _text(info: Mapping[str, Json], name: str) -> Value:
    value = info.get(name)
    return observed(value.strip() if isinstance(value, str) else None, _EMPTY)


def _flag(info: Mapping[str, Json], name: str) -> Value:
    value = info.get(name)
    return observed(value if isinstance(value, bool) else None, _EMPTY)


def _number(info: Mapping[str, Json], name: str, names: Mapping[str, int] | None = None) -> Value:
    return observed(_whole_number(info.get(name), names or {}), _EMPTY)


def _whole_number(value: Json, names: Mapping[str, int]) -> int | None:
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdecimal() and len(value) < 19 else names.get(value.casefold())
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _TOO_LARGE else None


def _changed(value: Value, change: Callable[[Any], Json]) -> Value:
    """Return the value in the shape that facts have, or the reason why it is missing."""
    if isinstance(value, Unreported):
        return value
    unknown = Unreported(f"Get-ComputerInfo says {value.value!r}, which is not known")
    return observed(change(value.value), unknown)
