"""dxdiag, as XML (`/x`) or as text: the GPUs with which Windows shows something.

Those in TCC mode, disabled or dismounted are not in it.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement

from winhost.imports.observation import (
    FileObservations,
    Misread,
    Observation,
    SeenFunction,
    State,
    Unreported,
    Value,
    Worth,
    document,
    observed,
    text_at,
    tree,
)
from winhost.imports.systeminfo import system_by_name
from winhost.model.units import MiB

TEXT = re.compile(r"^[ \t]*(?:Machine name|Card name): \S", re.MULTILINE)
"""Words of the file that dxdiag saves as text, in English on each Windows."""
_LINE = re.compile(r"[ \t]*([A-Z][^:]{1,30}): (\S.*?)[ \t\r]*$")
_RULE = re.compile(r"[ \t]*-{6,}[ \t\r]*$")
_SECTIONS = ("SystemInformation", "DisplayDevices", "SystemDevices")
_TAGS = {
    "machine name": "MachineName",
    "operating system": "OperatingSystem",
    "system manufacturer": "SystemManufacturer",
    "system model": "SystemModel",
    "bios": "BIOS",
    "memory": "Memory",
    "available os memory": "OSMemory",
    "card name": "CardName",
    "device type": "DeviceType",
    "device key": "DeviceKey",
    "device problem code": "DeviceProblemCode",
    "dedicated memory": "DedicatedMemory",
    "monitor id": "MonitorId",
    "driver version": "DriverVersion",
    "driver model": "DriverModel",
}
_KEY = re.compile(r"(VEN_[0-9A-F]{4}&DEV_[0-9A-F]{4}(?:&SUBSYS_[0-9A-F]{8})?)(?:&REV_[0-9A-F]{2})?", re.IGNORECASE)
_SYSTEM = re.compile(r"(?P<caption>[^(]+?)\s*(?:64-bit|32-bit)?\s*\(\d+\.\d+, \w+ (?P<build>\d{4,6})\)")
_MEMORY = re.compile(r"(\d{1,9})\s?MB")
_MODEL = re.compile(r"(WDDM)\b")
_MAX_TEXT = 200  # characters of what is searched for its parts
_POST = "(POST)"
_UNREPORTED = Unreported("dxdiag does not tell it")


def read(text: str) -> FileObservations:
    """Read the observations in a text. Raises Misread."""
    root = tree(document(text, "DxDiag")) if "<DxDiag" in text else _parse_text(text)
    system = root.find("SystemInformation")
    if root.tag != "DxDiag" or system is None:
        raise Misread("is XML, but not of dxdiag /x")
    firmware = {
        "manufacturer": _text(text_at(system, "SystemManufacturer")),
        "model": _text(text_at(system, "SystemModel")),
        "bios_version": _text(text_at(system, "BIOS")),
    }
    # What Windows can use is smaller than what is built in, and is what facts mean.
    amount = _MEMORY.match(text_at(system, "OSMemory") or text_at(system, "Memory") or "")
    memory = {"total": Observation(int(amount[1]) * MiB, Worth.ROUGH)} if amount else {}
    return FileObservations(
        host=text_at(system, "MachineName"),
        resources={"OperatingSystem": {"": _system(system)}, "Firmware": {"": firmware}, "Memory": {"": memory}},
        functions=_functions(root),
    )


def _parse_text(text: str) -> Element:
    """Parse the text into the form of dxdiag's XML: sections, and in some of them devices, which begin with their
    names.
    """
    root = Element("DxDiag")
    system, displays, devices = (SubElement(root, name) for name in _SECTIONS)
    inside: Element | None = None
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is None:
            inside = None if _RULE.match(line) else inside  # a heading follows
            continue
        tag, value = _TAGS.get(found[1].casefold()), found[2]
        if tag == "MachineName":
            inside = system
        elif tag == "CardName":
            inside = SubElement(displays, "DisplayDevice")
        elif found[1] == "Device ID" and value.startswith("PCI\\"):
            inside, tag = SubElement(devices, "SystemDevice"), "DeviceKey"
        if tag and inside is not None and inside.find(tag) is None:
            SubElement(inside, tag).text = value
    if not len(system) and not len(displays):
        raise Misread("names neither its machine nor a GPU")
    return root


def _system(system: Element) -> State:
    found = _SYSTEM.match((text_at(system, "OperatingSystem") or "")[:_MAX_TEXT])
    host = text_at(system, "MachineName") or ""
    if found is None:
        return {"hostname": _text(host), "caption": _text(None)}
    caption = found["caption"].strip()
    # It leaves the maker out, by which other tools begin.
    return {
        **system_by_name(f"Microsoft {caption}", host, int(found["build"])),
        "hostname": _text(host),
        "caption": _text(caption),
    }


def _text(written: str | None) -> Value:
    """Return a text as dxdiag words it: `BIOS` is name and version in one, and captions lack the maker."""
    return observed(written, _UNREPORTED, Worth.ROUGH)


def _functions(root: Element) -> tuple[SeenFunction, ...]:
    """Return the GPUs: dxdiag has an entry for each display output, and one among the system's devices for each GPU."""
    gpus: defaultdict[str, list[Element]] = defaultdict(list)
    for output in root.findall("DisplayDevices/DisplayDevice"):
        # Where somebody left the key out, the name tells what is one GPU; what has another key is no PCI device.
        key = _key(output) or ("" if text_at(output, "DeviceKey") else text_at(output, "CardName") or "")
        gpus[key].append(output)
    gpus.pop("", None)
    booted = any(_booted(output) for outputs in gpus.values() for output in outputs)
    functions: list[SeenFunction] = []
    devices = [text_at(device, "DeviceKey") or "" for device in root.findall("SystemDevices/SystemDevice")]
    for key, outputs in gpus.items():
        instances = dict.fromkeys(each for each in devices if each.upper().startswith(f"PCI\\{key}\\"))
        shared = _state(outputs, booted, alone=len(instances) < 2)
        ids = key.partition("&REV_")[0] if _KEY.fullmatch(key) else ""
        own = [{"instance": Observation(each)} for each in instances]
        functions += [SeenFunction(ids, {**shared, **each}) for each in own or [{}]]
    return tuple(functions)


def _key(output: Element) -> str:
    """`VEN_…&DEV_…&SUBSYS_…&REV_…`; empty for displays that are no PCI device."""
    found = _KEY.search(text_at(output, "DeviceKey") or "")
    return found[0].upper() if found else ""


def _booted(output: Element) -> bool:
    return _POST in (text_at(output, "DeviceType") or "")


def _state(outputs: Sequence[Element], booted: bool, *, alone: bool) -> State:
    first = outputs[0]
    model = _MODEL.match(text_at(first, "DriverModel") or "")
    vram = _MEMORY.match(text_at(first, "DedicatedMemory") or "")
    state: dict[str, Value] = {
        "name": Observation(text_at(first, "CardName") or "display adapter"),
        "kind": Observation("display"),
        "device_class": Observation("Display"),
        "driver_version": observed(text_at(first, "DriverVersion"), _UNREPORTED),
        "driver_model": observed(model and model[1], _UNREPORTED),
        "vram": observed(int(vram[1]) * MiB if vram else None, _UNREPORTED, Worth.ROUGH),
    }
    if text_at(first, "DeviceProblemCode") == "No Problem":
        state["problem"] = Observation(0)
    if alone and _key(first):  # else somebody pasted a part of it
        state["displays"] = Observation(sum(1 for output in outputs if text_at(output, "MonitorId")), Worth.ROUGH)
        if booted:  # older versions mark no device
            state["post_path"] = Observation(any(map(_booted, outputs)))
    return state
