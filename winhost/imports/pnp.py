"""Display adapters as Windows lists them: Get-PnpDevice, Win32_VideoController, pnputil, as a list or a table.

People paste whichever they know. All of them name a device by its instance path, which holds its ids.
"""

import re
from collections.abc import Mapping

from winhost.imports.observation import FileObservations, Misread, Observation, SeenFunction, Unreported, Value
from winhost.imports.survey_dda import LOCATION_PATH, is_gpu

_PATH = r"PCIP?\\(VEN_[0-9A-F]{4}&DEV_[0-9A-F]{4}(?:&SUBSYS_[0-9A-F]{8})?)"
LIST = re.compile(rf"^[ \t]*(?:InstanceId|PNPDeviceID|Instance ID)[ \t]*:[ \t]*{_PATH}", re.MULTILINE | re.IGNORECASE)
TABLE = re.compile(r"^(?=.*\b(?:FriendlyName|Name)\b)[ \t]*[A-Z].*\b(?:InstanceId|PNPDeviceID)\b", re.MULTILINE)
_INSTANCE = re.compile(rf"{_PATH}(\S*)", re.IGNORECASE)
_ITEM = re.compile(r"^[ \t]*([A-Za-z][A-Za-z ]{1,40}?)[ \t]*:[ \t]*(.*?)[ \t\r]*$")
_COLUMNS = re.compile(r"\s{2,}|\t")
_VERSION = re.compile(r"\b\d{1,3}(?:\.\d{1,5}){3}\b")
_NUMBERS = re.compile(rf"{_VERSION.pattern}|(?<=\s)\d{{5,}}(?=\s|$)")
_NAMES = ("friendlyname", "name", "device description", "caption", "description")
_PROBLEMS = {"ok": 0, "started": 0, "cm_prob_none": 0, "disabled": 22, "cm_prob_disabled": 22}
_CUT = ("...", "…")
_DISPLAY = ("display", "win32_videocontroller")
_NO_NAMES = {"error", "unknown", "degraded", *_PROBLEMS, *_DISPLAY}
_VRAM = Unreported("no such list tells it (AdapterRAM ends at 4 GiB); nvidia-smi -q -x does")


def read(text: str) -> FileObservations:
    """The display adapters. Raises Misread."""
    if not LIST.search(text) and not TABLE.search(text):
        raise Misread("lists no device by its instance path")
    found = list[SeenFunction]()
    for block in re.split(r"\n[ \t]*\n", text):
        if LIST.search(block):
            items = {m[1].casefold(): m[2] for line in block.splitlines() if (m := _ITEM.match(line))}
            found += filter(None, [_of_items(items, block)])
        else:
            found += filter(None, map(_of_row, block.splitlines()))
    whole = {str(each.state["instance"]): each for each in found if "instance" in each.state}
    # A console cuts long paths, so that two GPUs of one model are alike. Beside whole paths they are the same GPUs.
    known = [each.ids for each in whole.values()]
    cut = [
        each for each in found if "instance" not in each.state and not any(ids.startswith(each.ids) for ids in known)
    ]
    if not found:
        raise Misread("lists no display adapter by its instance path")
    return FileObservations(functions=(*whole.values(), *cut))


def _of_items(told: Mapping[str, str], block: str) -> SeenFunction | None:
    instance = _INSTANCE.search(block)
    kinds = [told[key] for key in ("class", "class name", "creationclassname") if key in told]
    name = next((told[key] for key in _NAMES if told.get(key)), "")
    if instance is None or not (kinds[0].casefold() in _DISPLAY if kinds else is_gpu(name, instance[0])):
        return None
    problem = told.get("problem") or told.get("configmanagererrorcode") or told.get("status") or ""
    path = LOCATION_PATH.search(block)
    return _function(instance, name, problem, told.get("driverversion"), path[0].upper() if path else None)


def _of_row(line: str) -> SeenFunction | None:
    """A row of a table. Its columns are in the order that somebody asked for, so their form tells them apart."""
    instance = _INSTANCE.search(line)
    if instance is None:
        return None
    driver = _VERSION.search(line)
    rest = _NUMBERS.sub("  ", line.replace(instance[0], "  "))  # one blank may be all that is between two columns
    words = [each.strip() for each in _COLUMNS.split(rest) if each.strip()]
    name = next((each for each in words if each.casefold() not in _NO_NAMES), "")
    listed = any(each.casefold() in _DISPLAY for each in words)
    if not listed and not is_gpu(name, instance[0]):
        return None
    problem = next((each for each in words if each.casefold() in _PROBLEMS), "")
    return _function(instance, name, problem, driver[0] if driver else None, None)


def _function(found: re.Match[str], name: str, problem: str, driver: str | None, location: str | None) -> SeenFunction:
    code = int(problem) if re.fullmatch(r"\d{1,3}", problem) else _PROBLEMS.get(problem.casefold())
    whole = found[2] and not found[0].endswith(_CUT)
    state: dict[str, Value] = {"kind": Observation("display"), "vram": _VRAM}
    if name and not name.endswith(_CUT):
        state["name"] = Observation(name)
    if whole:
        state["instance"] = Observation(found[0])
    if code is not None:
        state["problem"] = Observation(code)
    if driver and _VERSION.fullmatch(driver):
        state["driver_version"] = Observation(driver)
    return SeenFunction(ids=found[1].upper(), state=state, location=location)
