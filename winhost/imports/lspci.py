"""`lspci -vv -nn` of a live Linux on the same machine: what the bus has, whoever uses it on Windows."""

import re
from collections.abc import Iterator

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
)

HEAD = re.compile(
    r"^(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<bus>[0-9a-f]{2}):(?P<device>[01][0-9a-f])\.(?P<function>[0-7]) "
    r".{1,200}?\[(?P<class>[0-9a-f]{4})\]: (?P<name>.{1,400}) \[(?P<vendor>[0-9a-f]{4}):(?P<id>[0-9a-f]{4})\]",
)
_SUBSYSTEM = re.compile(r"^[ \t]+Subsystem: .*\[([0-9a-f]{4}):([0-9a-f]{4})\]$", re.MULTILINE)
# Indented once: deeper ones are those of virtual functions.
_REGION = re.compile(
    r"^(?:\t| {1,8})Region \d: Memory at (?P<start>\S+) \([^\n]*?(?:\[size=(?P<size>\d{1,4})(?P<unit>[KMGT]?)\])?$",
    re.MULTILINE,
)
_EXPRESS = re.compile(
    r"^[ \t]+Capabilities: \[[0-9a-f]+\] Express (?:\(v\d+\) )?([A-Za-z ]+?)(?:,| \(|$)", re.MULTILINE
)
_ENDPOINTS = {"Endpoint": 2, "Legacy Endpoint": 3, "Root Complex Integrated Endpoint": 4}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DISPLAY = "03"


def read(text: str) -> FileObservations:
    """The functions of all GPUs: display ones, and what shares their slot. Raises Misread."""
    functions = [(head, _function(head, block)) for head, block in _blocks(text)]
    if not functions:
        raise Misread("lists no device with class and ids: make it with lspci -vv -nn")
    slots = {_slot(head) for head, _ in functions if head["class"].startswith(_DISPLAY)}
    gpus = tuple(function for head, function in functions if _slot(head) in slots)
    return FileObservations(functions=gpus, every_function=True)


def _blocks(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """A device begins at the margin; what belongs to it is indented."""
    for block in re.split(r"\n(?=\S)", text.replace("\r\n", "\n")):
        head = HEAD.match(block.lstrip())
        if head:
            yield head, block


def _slot(head: re.Match[str]) -> tuple[str, str, str]:
    return head["domain"] or "0000", head["bus"], head["device"]


def _function(head: re.Match[str], block: str) -> SeenFunction:
    subsystem = _SUBSYSTEM.search(block)
    # Windows writes zeros where a device has no subsystem, and the vendor last.
    under = f"{subsystem[2]}{subsystem[1]}" if subsystem else "00000000"
    domain = int(head["domain"] or "0", 16)
    return SeenFunction(
        ids=f"VEN_{head['vendor']}&DEV_{head['id']}&SUBSYS_{under}".upper(),
        state=_state(head, block),
        address=PciAddress(domain, int(head["bus"], 16), int(head["device"], 16), int(head["function"], 16)),
    )


def _state(head: re.Match[str], block: str) -> dict[str, Value]:
    return {
        "name": Observation(head["name"], Worth.ROUGH),  # the database's, and Windows shows the driver's
        "kind": Observation(_kind(head["class"])),
        "base_class": Observation(int(head["class"][:2], 16)),
        "device_type": _device_type(block),
        "ranges": _ranges(block),
    }


def _kind(pci_class: str) -> str:
    known = {_DISPLAY: "display", "04": "audio"}
    return "usb" if pci_class == "0c03" else known.get(pci_class[:2], "other")


def _device_type(block: str) -> Value:
    express = _EXPRESS.search(block)
    if express is None:
        return Unreported("this listing has no capabilities: make it as root, with lspci -vv -nn")
    known = _ENDPOINTS.get(express[1])
    return Unreported(f"lspci calls it '{express[1]}'") if known is None else Observation(known)


def _ranges(block: str) -> Value:
    found = list(_REGION.finditer(block))
    if not found:
        return Unreported("this listing has no memory regions: make it with lspci -vv -nn")
    ranges: list[Json] = []
    for region in found:
        if not re.fullmatch("[0-9a-f]{1,16}", region["start"]) or region["size"] is None:
            return Unreported(f"Linux gave a memory region no place ({region['start']})")
        ranges.append({"start": int(region["start"], 16), "length": int(region["size"]) * _UNITS[region["unit"]]})
    return Observation(sorted(ranges, key=lambda each: each["start"]))
