"""Devices as Windows lists them: Microsoft's SurveyDDA.ps1 and its relatives, with a few sentences for each device and
the location path at the end; Get-PnpDevice, Win32_VideoController and pnputil, as a list or a table.

People paste whichever they know. All but the survey name a device by its instance path, which holds its ids.
"""

import re
from collections.abc import Iterator, Mapping

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

LOCATION_PATH = re.compile(r"PCIROOT\([0-9A-F]+\)(?:#PCI\([0-9A-F]{4}\))+", re.IGNORECASE)
LOCATION = re.compile(rf"^[ \t]*({LOCATION_PATH.pattern})[ \t\r]*$", re.IGNORECASE | re.MULTILINE)
_INSTANCE = re.compile(r"PCIP?\\(VEN_[0-9A-F]{4}&DEV_[0-9A-F]{4}(?:&SUBSYS_[0-9A-F]{8})?)\S*", re.IGNORECASE)
_MMIO = re.compile(r"it requires at least:\s*(\d{1,9})\s*MB of MMIO")
# The survey has no device class. Where a vendor's id stands in it, that tells: NVIDIA's boards have GPUs, their sound
# and USB, and switches. Elsewhere these are the words in which Windows names GPUs, with or without a driver.
_NVIDIA_ID = re.compile(r"PCIP?\\VEN_10DE&", re.IGNORECASE)
_GPU = re.compile(
    r"geforce|quadro|tesla|\btitan\b|\bgrid\b|\bnvs\b|\bcmp \d|\bnvidia graphics|\brtx\b|\bnvidia [a-z]{1,2}\d"
    r"|radeon|firepro|instinct|\barc\b.*graphics|graphics$|(?:uhd|hd|iris|vega).*graphics|graphics processing unit"
    r"|video ?controller|contr\S+ (?:de )?v[ií]d[eé]o|ビデオ ?コントローラ|视频控制器|視訊控制器|비디오 ?컨트롤러"
    r"|видеоконтроллер|kontroler wideo"
    r"|vga|basic display|display adapter",
    re.IGNORECASE,
)
_OTHER_DEVICE = re.compile(
    r"audio|usb|ucsi|type-c|\broot\b|bridge|switch|port\b|ethernet|network|controller hub", re.IGNORECASE
)
_MAX_NAME_LENGTH = 200
_SRIOV_REFUSED = "Unfortunately, this machine doesn't support using them in a VM."
_BEGINNING = "Generating a list of PCI Express endpoint devices"
_MAX_REASONS = 20
_CONTROLLER = "Legacy Express Endpoint -- graphics controller."

# The facts in each sentence; the script asked only later questions about such a device.
_SENTENCES: tuple[tuple[str, dict[str, Value]], ...] = (
    ("BIOS requires that this device remain attached", {"rmrr": Observation(True)}),
    ("Traffic from this device may be redirected", {"rmrr": Observation(False), "acs": Observation(0)}),
    ("Express Endpoint -- more secure", {"rmrr": Observation(False), "device_type": Observation(2)}),
    ("Embedded Endpoint -- less secure", {"rmrr": Observation(False), "device_type": Observation(4)}),
    (_CONTROLLER, {"rmrr": Observation(False), "device_type": Observation(3), "base_class": Observation(3)}),
    (
        "BIOS kept control of PCI Express",
        {"rmrr": Observation(False), "device_type": Observation(5), "pcie_control": Observation(False)},
    ),
    (
        "Old-style PCI device, switch port, etc.",
        {
            "rmrr": Observation(False),
            "device_type": Unreported(
                "the survey takes it for an old-style device, not assignable; run its current version"
            ),
        },
    ),
    ("Legacy, non-VGA PCI device.", {"rmrr": Observation(False), "device_type": Observation(3)}),
    ("Device is Disabled, unable to check", {"problem": Observation(22)}),
    ("it has no interrupts at all", {"line_interrupts_only": Observation(False)}),
    ("its interrupts are message-based", {"line_interrupts_only": Observation(False)}),
    ("All of the interrupts are line-based", {"line_interrupts_only": Observation(True)}),
)


def read_survey(text: str) -> FileObservations:
    """Return the GPUs of the listing. Raises Misread."""
    blocks = list(_blocks(text))
    if not any(_has_result(block) for block in blocks):
        raise Misread("has no device that SurveyDDA.ps1 judged: its judgements are redirected by *> and not by >")
    return FileObservations(
        resources=_host(text),
        functions=tuple(_surveyed(block) for block in blocks if _is_gpu(block)),
        every_gpu=_BEGINNING in text,
    )


def _host(text: str) -> Mapping[str, Mapping[str, State]]:
    """Hyper-V's refusal of SR-IOV, with its reasons. The survey says nothing of it where Hyper-V does not refuse."""
    _, refused, behind = text.partition(_SRIOV_REFUSED)
    if not refused:
        return {}
    reasons = [line.strip() for line in behind.splitlines() if line.strip()]
    return {"HyperVHost": {"": {"iov_support": Observation(False), "iov_reasons": Observation(reasons[:_MAX_REASONS])}}}


def _blocks(text: str) -> Iterator[list[str]]:
    """Empty lines stand between devices; listings that lost them still end each device with its location path."""
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.strip():
            block.append(line.strip())
        if block and (not line.strip() or LOCATION.match(line)):
            yield block
            block = []


def _has_result(block: list[str]) -> bool:
    return len(block) > 1 and any(sentence in line for line in block[1:] for sentence, _ in _SENTENCES)


def _is_gpu(block: list[str]) -> bool:
    """True if the block is a GPU's, also if it holds a sentence that winhost does not know."""
    return len(block) > 1 and (_CONTROLLER in block or is_gpu(block[0], "\n".join(block[1:])))


def is_gpu(name: str, ids: str) -> bool:
    name = name[:_MAX_NAME_LENGTH]
    return bool((_NVIDIA_ID.search(ids) or _GPU.search(name)) and not _OTHER_DEVICE.search(name))


def _surveyed(block: list[str]) -> SeenFunction:
    whole = "\n".join(block[1:])
    location = LOCATION.search(whole)
    instance, total = _INSTANCE.search(whole), _MMIO.search(whole)
    state: dict[str, Value] = {
        "name": Observation(block[0]),
        "kind": Observation("display", Worth.ROUGH),
        "acs": Unreported("the survey says only that it is not 0"),
        "ranges": Unreported(
            f"the survey has only their sum, {total[1]} MB" if total else "the survey does not tell them"
        ),
    }
    if not _has_result(block):
        state["device_type"] = Unreported(
            f"winhost does not know what the survey says of it: {block[1][:_MAX_NAME_LENGTH]}"
        )
    for sentence, says in _SENTENCES:
        if sentence in whole:
            state.update(says)
    if instance:
        state["instance"] = Observation(instance[0])
    return SeenFunction(
        ids=instance[1].upper() if instance else "", state=state, location=location[1].upper() if location else None
    )


# ---- display adapters: Get-PnpDevice, Win32_VideoController, pnputil


_PATH = r"PCIP?\\(VEN_[0-9A-F]{4}&DEV_[0-9A-F]{4}(?:&SUBSYS_[0-9A-F]{8})?)"
LIST = re.compile(rf"^[ \t]*(?:InstanceId|PNPDeviceID|Instance ID)[ \t]*:[ \t]*{_PATH}", re.MULTILINE | re.IGNORECASE)
TABLE = re.compile(r"^(?=.*\b(?:FriendlyName|Name)\b)[ \t]*[A-Z].*\b(?:InstanceId|PNPDeviceID)\b", re.MULTILINE)
_INSTANCE_PATH = re.compile(rf"{_PATH}(\S*)", re.IGNORECASE)
_ITEM = re.compile(r"^[ \t]*([A-Za-z][A-Za-z ]{1,40}?)[ \t]*:[ \t]*(.*?)[ \t\r]*$")
_COLUMNS = re.compile(r"\s{2,}|\t")
_VERSION = re.compile(r"\b\d{1,3}(?:\.\d{1,5}){3}\b")
_NUMBERS = re.compile(rf"{_VERSION.pattern}|(?<=\s)\d{{5,}}(?=\s|$)")
_NAMES = ("friendlyname", "name", "device description", "caption", "description")
_PROBLEMS = {"ok": 0, "started": 0, "cm_prob_none": 0, "disabled": 22, "cm_prob_disabled": 22}
_CUT = ("...", "…")
_DISPLAY = ("display", "win32_videocontroller")
_STATUS_WORDS = {"error", "unknown", "degraded", *_PROBLEMS, *_DISPLAY}
_VRAM = Unreported("no such list tells it (AdapterRAM ends at 4 GiB); nvidia-smi -q -x does")


def read_adapters(text: str) -> FileObservations:
    """Return the display adapters. Raises Misread."""
    if not LIST.search(text) and not TABLE.search(text):
        raise Misread("lists no device by its instance path")
    found = list[SeenFunction]()
    for block in re.split(r"\n[ \t]*\n", text):
        if LIST.search(block):
            items = {m[1].casefold(): m[2] for line in block.splitlines() if (m := _ITEM.match(line))}
            found += filter(None, [_function_of_items(items, block)])
        else:
            found += filter(None, map(_function_of_row, block.splitlines()))
    whole = {str(each.state["instance"]): each for each in found if "instance" in each.state}
    # A console cuts long paths, so that two GPUs of one model are alike. Beside whole paths they are the same GPUs.
    known = [each.ids for each in whole.values()]
    cut = [
        each for each in found if "instance" not in each.state and not any(ids.startswith(each.ids) for ids in known)
    ]
    if not found:
        raise Misread("lists no display adapter by its instance path")
    return FileObservations(functions=(*whole.values(), *cut))


def _function_of_items(items: Mapping[str, str], block: str) -> SeenFunction | None:
    instance = _INSTANCE_PATH.search(block)
    kinds = [items[key] for key in ("class", "class name", "creationclassname") if key in items]
    name = next((items[key] for key in _NAMES if items.get(key)), "")
    if instance is None or not (kinds[0].casefold() in _DISPLAY if kinds else is_gpu(name, instance[0])):
        return None
    problem = items.get("problem") or items.get("configmanagererrorcode") or items.get("status") or ""
    path = LOCATION_PATH.search(block)
    return _function(instance, name, problem, items.get("driverversion"), path[0].upper() if path else None)


def _function_of_row(line: str) -> SeenFunction | None:
    """Parse a row of a table. Its columns are in the order that somebody asked for, so their form tells them apart."""
    instance = _INSTANCE_PATH.search(line)
    if instance is None:
        return None
    driver = _VERSION.search(line)
    rest = _NUMBERS.sub("  ", line.replace(instance[0], "  "))  # one blank may be all that is between two columns
    words = [each.strip() for each in _COLUMNS.split(rest) if each.strip()]
    name = next((each for each in words if each.casefold() not in _STATUS_WORDS), "")
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
