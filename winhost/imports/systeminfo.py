"""`systeminfo`, as a list or with /fo csv: which Windows, its machine and roughly its memory.

Names and some values are in the language of Windows, in the same order in each. In English all of it is read; in other
languages only what stands beside values that no language changes: a version, a type, an amount.
"""

import csv
import re
from collections.abc import Mapping
from io import StringIO

from winhost.core.answers import Json
from winhost.imports.observation import (
    FileObservations,
    Misread,
    Observation,
    State,
    Unreported,
    Value,
    Worth,
    observed,
)
from winhost.model.units import MiB

LIST = re.compile(r"^OS Name:\s", re.MULTILINE)
CSV = re.compile(r'^"?Host Name"?,"?OS Name"?,', re.MULTILINE)
ELSEWHERE = re.compile(
    r"^[^\s<\[{\"][^:\n]{0,60}:\s+10\.0\.\d{5}\b[\s\S]*?^[^\s<\[{\"][^:\n]{0,60}:\s+(?:x64|ARM64)-"
    r"|^\"[^\"\n]*\",\"[^\"\n]*\",\"10\.0\.\d{5}\b.*,\"(?:x64|ARM64)-",
    re.IGNORECASE | re.MULTILINE,
)
"""Signs of the output in any language: a version of Windows, and behind it the type of the system."""
PART = re.compile(r"^\S[^:\n]{0,60}:\s+10\.0\.\d{5}\b", re.MULTILINE)

NAMES_AND_VALUES = 2  # lines
_KEY = re.compile(r"([A-Z][^:]{1,60}):(?:\s+(.*))?")
_VERSION = re.compile(r"(\d+\.\d+)\.(\d{4,6})\b")
_MEGABYTES = re.compile(r"(\d[\d.,\u00a0\u202f' ]*) MB")
_AMOUNT = re.compile(r"(\d{1,3}(?:[^\w\n]\d{3}|\u00ff\d{3})*|\d+)[\s\u00ff]?[^\W\d_]{2}")  # 65.324 MB, 16 223 Mo
_TYPE = re.compile(r"(?:x64|ARM64)-", re.IGNORECASE)
_ITEM = re.compile(r"[^\s\[:][^:]{0,80}:(?:\s+(.*))?")
_MAX_DIGITS = 12
_HYPERVISOR = "A hypervisor has been detected"
_MONITOR_MODE = "VM Monitor Mode Extensions: "
_PRODUCT_TYPES = {"Workstation": 1, "Domain Controller": 2, "Server": 3}
_PRODUCT_OPTIONS = {1: "WinNT", 2: "LanmanNT", 3: "ServerNT"}
# What Windows calls an edition: its SKU and edition id, as winnt.h and the registry have them.
_EDITIONS = {
    "Pro": (48, "Professional"),
    "Home": (101, "Core"),
    "Enterprise": (4, "Enterprise"),
    "Education": (121, "Education"),
    "Pro for Workstations": (161, "ProfessionalWorkstation"),
    "Enterprise multi-session": (175, "ServerRdsh"),
    "Standard": (7, "ServerStandard"),
    "Datacenter": (8, "ServerDatacenter"),
    "Enterprise Evaluation": (72, "EnterpriseEval"),
    "Standard Evaluation": (79, "ServerStandardEval"),
    "Datacenter Evaluation": (80, "ServerDatacenterEval"),
    "Datacenter Azure Edition": (407, "ServerTurbine"),
    "Pro N": (49, "ProfessionalN"),
    "Pro Education": (164, "ProfessionalEducation"),
    "Home N": (98, "CoreN"),
    "Home Single Language": (100, "CoreSingleLanguage"),
    "Enterprise LTSC": (125, "EnterpriseS"),
    "IoT Enterprise": (188, "IoTEnterprise"),
    "Professionnel": (48, "Professional"),
    "Famille": (101, "Core"),
    "Entreprise": (4, "Enterprise"),
    "专业版": (48, "Professional"),
    "家庭版": (101, "Core"),
    "家庭中文版": (99, "CoreCountrySpecific"),
    "企业版": (4, "Enterprise"),
    "教育版": (121, "Education"),
    "专业工作站版": (161, "ProfessionalWorkstation"),
}
_NAME = re.compile(r"\S+ Windows (?:1[01]|Server \d{4}) (.+)")
_CLIENT = re.compile(r"\S+ Windows 1[01]\b")
_UNREPORTED = Unreported("systeminfo does not say it; Get-ComputerInfo | ConvertTo-Json does")


def read(text: str) -> FileObservations:
    """Read the observations in a text. Raises Misread."""
    if not LIST.search(text) and not CSV.search(text):
        return _elsewhere(text)
    if CSV.search(text):
        rows = _rows(text)
        if len(rows) != NAMES_AND_VALUES or len(rows[0]) != len(rows[1]):
            raise Misread("is not the CSV of one computer: a line of names, and one of values")
        info: Mapping[str, str] = dict(zip(map(str.strip, rows[0]), map(str.strip, rows[1]), strict=True))
    else:
        info = _list(text)
    if "OS Name" not in info:
        raise Misread("is no whole output of systeminfo")
    return FileObservations(
        host=info.get("Host Name") or None,
        resources={
            "OperatingSystem": {"": _system(info)},
            "Firmware": {"": _firmware(info)},
            "Memory": {
                "": {
                    "total": _amount(_MEGABYTES.match(info.get("Total Physical Memory", ""))),
                    "free": _amount(_MEGABYTES.match(info.get("Available Physical Memory", ""))),
                }
            },
        },
        advice="systeminfo rounds memory and leaves out the revision: Get-ComputerInfo | ConvertTo-Json tells more",
    )


def _elsewhere(text: str) -> FileObservations:
    """Tell fields apart by order and by values that no language changes. Raises Misread."""
    values = _values(text)
    version = next((at for at, value in enumerate(values) if _VERSION.match(value)), None)
    kind = next((at for at, value in enumerate(values) if _TYPE.match(value)), None)
    if version is None or kind is None or not 1 < version < kind - 2:
        raise Misread("is no whole output of systeminfo")
    name, host = values[version - 1], values[version - 2]
    memory = [found for value in values[kind:] if (found := _AMOUNT.fullmatch(value))]
    found = _VERSION.match(values[version])
    system = system_by_name(name, host, int(found[2]) if found else None)
    return FileObservations(
        host=host or None,
        resources={
            "OperatingSystem": {"": {**system, "architecture": _observed(architecture(values[kind]))}},
            "Firmware": {"": {"manufacturer": _observed(values[kind - 2]), "model": _observed(values[kind - 1])}},
            "Memory": {"": dict(zip(("total", "free"), map(_amount, [*memory, None, None]), strict=False))},
        },
        advice="of other languages systeminfo is read by its order alone: Get-ComputerInfo | ConvertTo-Json tells more",
    )


def system_by_name(name: str, host: str, build: int | None) -> State:
    """Read the name of Windows in any language; only words say that a server is a domain controller."""
    edition = _NAME.fullmatch(name)
    sku, edition_id = _EDITIONS.get(edition[1] if edition else "", (None, None))
    client = 1 if _CLIENT.match(name) else None
    return {
        "hostname": _observed(host),
        "caption": _observed(name),
        "product_type": _observed(client),
        "product_options": _observed(_PRODUCT_OPTIONS.get(client or 0)),
        "sku": _observed(sku, Worth.ROUGH),
        "edition_id": _observed(edition_id, Worth.ROUGH),
        "build": _observed(build),
    }


def edition_of_sku(sku: Json) -> Value:
    """Return the edition id that belongs to an SKU, for tools that tell only the number."""
    return _observed(next((edition for number, edition in _EDITIONS.values() if number == sku), None), Worth.ROUGH)


def _values(text: str) -> list[str]:
    """Return the values in the order of the list or of the CSV. An indented or numbered line continues the last one."""
    rows = _rows(text) if text.lstrip().startswith('"') else []
    if len(rows) == NAMES_AND_VALUES:
        return [value.strip() for value in rows[1]]
    return [(found[1] or "").strip() for line in text.splitlines() if (found := _ITEM.match(line))]


def _amount(found: re.Match[str] | None) -> Value:
    """Return an amount of memory. systeminfo prints whole MB, which are MiB, with the separators of the country."""
    digits = re.sub(r"\D", "", found[1]) if found else ""
    return _observed(int(digits) * MiB if 0 < len(digits) <= _MAX_DIGITS else None, Worth.ROUGH)


def _list(text: str) -> Mapping[str, str]:
    """Values by name; lines that continue belong to the name before them."""
    info: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        found = _KEY.match(line)
        if found:
            name = found[1].strip()
            info.setdefault(name, []).append((found[2] or "").strip())
        elif name and line.strip():
            info[name].append(line.strip())
    return {name: ", ".join(filter(None, lines)) for name, lines in info.items()}


def _rows(text: str) -> list[list[str]]:
    return [row for row in csv.reader(StringIO(text.lstrip())) if row]


def _system(info: Mapping[str, str]) -> State:
    product_type = next((n for word, n in _PRODUCT_TYPES.items() if word in info.get("OS Configuration", "")), None)
    name = info["OS Name"].split("|")[0].strip()
    version = _VERSION.search(info.get("OS Version", ""))
    return {
        **system_by_name(name, info.get("Host Name", ""), int(version[2]) if version else None),
        "product_type": _observed(product_type),  # in English it also says that a server is a domain controller
        "product_options": _observed(_PRODUCT_OPTIONS.get(product_type or 0)),
        "architecture": _observed(architecture(info.get("System Type", ""))),
    }


def architecture(written: str) -> str | None:
    kind = written.casefold()
    return "ARM64" if kind.startswith("arm64") else "AMD64" if kind.startswith("x64") else None


def _firmware(info: Mapping[str, str]) -> State:
    requirements = info.get("Hyper-V Requirements", "")
    running = requirements.startswith(_HYPERVISOR)
    known = running or _MONITOR_MODE in requirements  # neither where the text was cut short
    state: dict[str, Value] = {
        "manufacturer": _observed(info.get("System Manufacturer")),
        "model": _observed(info.get("System Model")),
    }
    if known:
        state["hypervisor_present"] = Observation(running)
    if known and not running:
        state["virtualization_enabled"] = _flag(requirements, "Virtualization Enabled In Firmware")
        state["second_level_translation"] = _flag(requirements, "Second Level Address Translation")
    return state


def _flag(requirements: str, name: str) -> Value:
    found = re.search(rf"{name}: (Yes|No)\b", requirements)
    return _observed(found[1] == "Yes" if found else None)


def _observed(value: Json, worth: Worth = Worth.EXACT) -> Value:
    return observed(value, _UNREPORTED, worth)
