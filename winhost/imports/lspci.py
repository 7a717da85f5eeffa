"""`lspci -vv -nn` of a live Linux on the same machine: the devices on the bus, whatever uses them on Windows."""

import re

from winhost.core.answers import Json
from winhost.imports.observation import (
    FileObservations,
    Misread,
    Observation,
    PciAddress,
    SeenFunction,
    Unreported,
    Value,
    Worth,
    observed,
    sections,
)

_LINE_START = r"^[ \t]*(?:IOMMU [Gg]roups? \d+:? +)?"  # as scripts list the groups of an IOMMU
HEAD = re.compile(
    _LINE_START + r"(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}):(?P<device>[01][0-9a-f])\.(?P<function>[0-7]) "
    r"(?:.{1,200}?\[(?P<class>[0-9a-f]{4})\]: (?P<name>.{1,400}) \[(?P<vendor>[0-9a-f]{4}):(?P<id>[0-9a-f]{4})\]"
    r"|(?P<only_class>[0-9a-f]{4}): (?P<only_vendor>[0-9a-f]{4}):(?P<only_id>[0-9a-f]{4})(?= \(|[ \t\r]*$)[^\n]*"
    r"|(?P<words>[A-Z0-9][^:\[\n]{2,60}): (?P<called>[^\n]{1,400}?)"
    r"(?: \(rev [0-9a-f]{2}\))?(?: \(prog-if [^\n]*\))?[ \t\r]*$)",
    re.MULTILINE,
)
PATTERN = re.compile(
    _LINE_START + r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[01][0-9a-f]\.[0-7] "
    r"(?:.{1,200}?\[[0-9a-f]{4}\]: .{1,400} \[[0-9a-f]{4}:[0-9a-f]{4}\]|(?:VGA compatible|3D|Display) controller: "
    r"|03[0-9a-f]{2}: [0-9a-f]{4}:[0-9a-f]{4}(?: \(|[ \t\r]*$))",
    re.MULTILINE,
)
_SUBSYSTEM = re.compile(r"^[ \t]*Subsystem: (?:.*\[)?([0-9a-f]{4}):([0-9a-f]{4})\]?$", re.MULTILINE)
_DETAIL = re.compile(r"^[ \t]*(?:Subsystem|Flags|Control|Region \d|Capabilities|Kernel \w+)\b", re.MULTILINE)
# Indented once, or not at all where a paste lost that: deeper ones are those of virtual functions. -v has no numbers.
_REGION = re.compile(
    r"^(?:\t| {0,8})(?:Region \d: )?Memory at (?P<start>\S+) "
    r"\([^\n]*?(?:\[size=(?P<size>\d{1,4})(?P<unit>[KMGT]?)\])?$",
    re.MULTILINE,
)
_EXPRESS = re.compile(
    r"^[ \t]*Capabilities: \[[0-9a-f]+\] Express (?:\(v\d+\) )?([A-Za-z ]+?)(?:,| \(|$)", re.MULTILINE
)
_ENDPOINTS = {"Endpoint": 2, "Legacy Endpoint": 3, "Root Complex Integrated Endpoint": 4}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DISPLAY = "03"
_KINDS = {_DISPLAY: "display", "04": "audio"}
# What lspci calls a class where nobody asked for numbers (-nn).
_CLASSES = {
    "VGA compatible controller": "0300",
    "3D controller": "0302",
    "Display controller": "0380",
    "Audio device": "0403",
    "USB controller": "0c03",
}
_UNNAMED = re.compile(r"NVIDIA Corporation Device (?P<id>[0-9a-f]{4})")  # what the database does not know
_IDS_MISSING = "this listing names GPUs without their ids: lspci -vv -nn tells them"


def read(text: str) -> FileObservations:
    """Return the functions of all GPUs: display ones, and what shares their slot. Raises Misread."""
    # The lines behind the head of a device are about it until the next head, indented or not.
    heads = [(head, head[0] + behind) for head, behind in sections(HEAD, text)]
    if not heads:
        raise Misread("lists no device")
    # People paste what grep left over: a listing of GPUs alone may lack some.
    whole = any(not _class(head).startswith((_DISPLAY, "04", "0c")) for head, _ in heads)
    slots = {_slot(head) for head, _ in heads if _class(head).startswith(_DISPLAY)}
    gpus = [(head, block) for head, block in heads if _slot(head) in slots]
    functions = []
    for head, block in gpus:
        numbers = (int(head[part] or "0", 16) for part in ("domain", "bus", "device", "function"))
        functions.append(SeenFunction(_ids(head, block), _state(head, block), address=PciAddress(*numbers)))
    return FileObservations(
        functions=tuple(functions),
        every_function=whole,
        advice=_IDS_MISSING if any(head["words"] for head, _ in gpus) else None,
    )


def _class(head: re.Match[str]) -> str:
    return head["class"] or head["only_class"] or _CLASSES.get(head["words"], "ffff")


def _slot(head: re.Match[str]) -> tuple[str, str, str]:
    return head["domain"] or "0000", head["bus"], head["device"]


def _ids(head: re.Match[str], block: str) -> str:
    """Return the ids that the listing tells; the subsystem may have been left out of a line that stands alone."""
    unnamed = _UNNAMED.fullmatch(head["called"] or "")
    vendor, device = head["vendor"] or head["only_vendor"], head["id"] or head["only_id"]
    if vendor is None:
        return f"VEN_10DE&DEV_{unnamed['id']}".upper() if unnamed else ""
    known = f"VEN_{vendor}&DEV_{device}".upper()
    if not _DETAIL.search(block):
        return known
    subsystem = _SUBSYSTEM.search(block)
    # Windows writes zeros where a device has no subsystem, and the vendor last.
    under = f"{subsystem[2]}{subsystem[1]}" if subsystem else "00000000"
    return f"{known}&SUBSYS_{under}".upper()


def _state(head: re.Match[str], block: str) -> dict[str, Value]:
    name = head["name"] or head["called"]
    return {
        # The database's name, and Windows shows the driver's.
        "name": Observation(name, Worth.ROUGH) if name else Unreported("lspci -n tells ids alone: lspci -vv -nn"),
        "kind": Observation("usb" if _class(head) == "0c03" else _KINDS.get(_class(head)[:2], "other")),
        "base_class": Observation(int(_class(head)[:2], 16)),
        "device_type": _device_type(block),
        "ranges": _ranges(block),
    }


def _device_type(block: str) -> Value:
    express = _EXPRESS.search(block)
    if express is None:
        return Unreported("this listing has no capabilities: make it as root, with lspci -vv -nn")
    return observed(_ENDPOINTS.get(express[1]), Unreported(f"lspci calls it '{express[1]}'"))


def _ranges(block: str) -> Value:
    found = list(_REGION.finditer(block))
    if not found:
        return Unreported("this listing has no memory regions: make it with lspci -vv -nn")
    if not block[found[-1].end() :].strip():
        return Unreported("this listing ends among the memory regions")  # others may have followed
    ranges: list[Json] = []
    for region in found:
        if not re.fullmatch("[0-9a-f]{1,16}", region["start"]) or region["size"] is None:
            return Unreported(f"Linux gave a memory region no address ({region['start']})")
        ranges.append({"start": int(region["start"], 16), "length": int(region["size"]) * _UNITS[region["unit"]]})
    return Observation(sorted(ranges, key=lambda each: each["start"]))
