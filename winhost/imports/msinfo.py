"""msinfo32, as a file (.nfo) or as text: which Windows, its machine, processors and GPUs, and how firmware starts it;
and `bcdedit`, which tells that alone.

Names, and in a file even the elements, are in the language of Windows, in the same order in each. So values are found
by forms that no language changes: a version, a type of the system, an amount, the id of a device. bcdedit words its
headings in that language, too, but not the names of what it lists (path, device) and the files. What it shows of the
firmware has no numbers of Boot####: only the firmware's variables have them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from winhost.imports.devices import is_gpu
from winhost.imports.observation import (
    FileObservations,
    Misread,
    Observation,
    SeenFunction,
    State,
    Unreported,
    Value,
    Worth,
)
from winhost.imports.systeminfo import architecture, system_by_name
from winhost.model.units import GiB

BCD = re.compile(r"^path\s+\\\S.*\.(?:efi|exe)\s*$", re.MULTILINE | re.IGNORECASE)
_UEFI_LOADER = re.compile(r"^path\s+\\\S.*\.efi\s*$", re.MULTILINE | re.IGNORECASE)
INFO = re.compile(r"<MsInfo>|^BIOS Mode\t", re.MULTILINE)
_MODE = re.compile(r"BIOS Mode(?:\]\]></Item>\s*<Value><!\[CDATA\[|\t)(UEFI|Legacy)\b")
_MODE_ANYWHERE = re.compile(r"<!\[CDATA\[UEFI\]\]>")  # no other value of the summary is that word
_SECURE = re.compile(r"Secure Boot State(?:\]\]></Item>\s*<Value><!\[CDATA\[|\t)(On|Off|Unsupported)\b")
_NUMBERS = Unreported("the firmware's variables alone say it: winhost detect HOST")
_FIRMWARE_ENTRIES = ("current", "next", "order", "entries")
TEXT = re.compile(r"^\S[^\t\n]*\t+10\.0\.(\d{5})\b[^\n]*\b\1\b", re.MULTILINE)
_DATA = re.compile(
    r"<Data>\s*<[^<>]+><!\[CDATA\[(.*?)\]\]></[^<>]+>\s*<[^<>]+><!\[CDATA\[(.*?)\]\]></[^<>]+>\s*</Data>", re.DOTALL
)
_LINE = re.compile(r"^([^\t\r\n]+)\t+([^\t\r\n]*?)[\t \r]*$", re.MULTILINE)
_VERSION = re.compile(r"10\.0\.(\d{5})\b.*\b\1\b")
_TYPE = re.compile(r"(?:x64|ARM64)-", re.IGNORECASE)
_PROCESSOR = re.compile(r"(.{1,120}?), \d{3,5} [^\s,]{2,4}, (\d{1,4}) [^,]+, (\d{1,4}) \S.*")
_AMOUNT = re.compile(r"(\d{1,5})(?:[.,](\d{1,2}))? (?:GB|Go|ГБ)")
_INSTANCE = re.compile(r"PCI\\(VEN_[0-9A-F]{4}&DEV_[0-9A-F]{4}&SUBSYS_[0-9A-F]{8})&REV_\S+", re.IGNORECASE)
_DRIVER = re.compile(r"\d{1,3}(?:\.\d{1,5}){3}")
_MAX_PAIRS = 200_000
_DRIVER_WITHIN = 8  # pairs behind the id of the device


def read(text: str) -> FileObservations:
    """Read the observations in a text. Raises Misread."""
    listed = _DATA.findall(text) if "<MsInfo>" in text else _LINE.findall(text)
    pairs = [(name.strip(), value.strip()) for name, value in listed[:_MAX_PAIRS]]
    values = [value for _, value in pairs]
    version = next((at for at, value in enumerate(values) if at and _VERSION.match(value)), None)
    firmware = _firmware(text, told=version is not None)
    if version is None:
        return FileObservations(resources=firmware)
    kind = next((at for at, value in enumerate(values) if _TYPE.match(value) and at > version + 3), None)
    host = values[kind - 3] if kind else ""
    found = _VERSION.match(values[version])
    system = system_by_name(values[version - 1], host, int(found[1]) if found else None)
    machine: dict[str, Value] = {}
    if kind:
        system = {**system, "architecture": Observation(architecture(values[kind]))}
        machine = {"manufacturer": Observation(values[kind - 2]), "model": Observation(values[kind - 1])}
    gpus = tuple(_gpus(pairs))
    return FileObservations(
        host=host or None,
        resources={
            "OperatingSystem": {"": system},
            **({"Firmware": {"": machine}} if machine else {}),
            **_processors(values),
            **_memory(values[kind or version :]),
            **firmware,
        },
        functions=gpus or None,
    )


def _firmware(text: str, *, told: bool) -> Mapping[str, Mapping[str, State]]:
    """Read the firmware. told: the text has other facts, so this one may be missing. Raises Misread."""
    mode, secure = _MODE.search(text), _SECURE.search(text)
    if mode is None and not _MODE_ANYWHERE.search(text):
        if told:
            return {}
        raise Misread("says nothing of the firmware's mode in English, and is not of a UEFI")
    why = Unreported("msinfo32 does not say it")
    state = {"state": Observation(secure[1].lower()) if secure else why, "authorities": why, "revoked": why}
    return {**_boot("bios" if mode and mode[1] == "Legacy" else "uefi"), "SecureBoot": {"": state}}


def _boot(kind: str) -> Mapping[str, Mapping[str, State]]:
    return {"FirmwareBoot": {"": {"kind": Observation(kind), **dict.fromkeys(_FIRMWARE_ENTRIES, _NUMBERS)}}}


def read_bcd(text: str) -> FileObservations:
    """Read the observations in a text. Raises Misread."""
    if not BCD.search(text):
        raise Misread("names no loader")
    return FileObservations(resources=_boot("uefi" if _UEFI_LOADER.search(text) else "bios"))


def _processors(values: Sequence[str]) -> dict[str, Mapping[str, State]]:
    sockets = [found for value in values if (found := _PROCESSOR.fullmatch(value))]
    states: dict[str, State] = {
        f"CPU{number}": {
            "name": Observation(each[1]),
            "cores": Observation(int(each[2])),
            "threads": Observation(int(each[3])),
        }
        for number, each in enumerate(sockets)
    }
    return {"Processor": states} if states else {}


def _memory(values: Sequence[str]) -> dict[str, Mapping[str, State]]:
    """First the memory that is built in, then what Windows can use, which facts mean; in tenths of GB."""
    amounts = [found for value in values if (found := _AMOUNT.fullmatch(value))]
    if len(amounts) < 2:
        return {}
    total = float(f"{amounts[1][1]}.{amounts[1][2] or 0}") * GiB
    return {"Memory": {"": {"total": Observation(int(total), Worth.ROUNDED)}}}


def _gpus(pairs: Sequence[tuple[str, str]]) -> Iterator[SeenFunction]:
    """Find the GPUs: the name of a device stands before its id, its driver's version behind it."""
    seen: set[str] = set()
    named: set[str] = set()
    for at, (_, value) in enumerate(pairs):
        instance = _INSTANCE.fullmatch(value)
        name = pairs[at - 1][1] if at else ""
        if instance is None or value in seen or not is_gpu(name, value):
            continue
        seen.add(value)
        named.add(name)
        state: dict[str, Value] = {
            "name": Observation(name),
            "kind": Observation("display", Worth.ROUGH),
            "instance": Observation(value),
        }
        behind = (told for _, told in pairs[at + 1 : at + 1 + _DRIVER_WITHIN])
        driver = next((told for told in behind if _DRIVER.fullmatch(told)), None)
        if driver:
            state["driver_version"] = Observation(driver)
        yield SeenFunction(instance[1].upper(), state)
    # Where a paste lacks the ids of devices, their names remain, in English.
    for name in (value for label, value in pairs if label == "Adapter Description" and value not in named):
        if is_gpu(name, ""):
            yield SeenFunction("", {"name": Observation(name), "kind": Observation("display", Worth.ROUGH)})
