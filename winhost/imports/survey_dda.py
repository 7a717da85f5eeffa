"""Microsoft's SurveyDDA.ps1 and its relatives: per device a few sentences, and the location path at the end."""

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
_OF_NVIDIA = re.compile(r"PCIP?\\VEN_10DE&", re.IGNORECASE)
_GPU = re.compile(
    r"geforce|quadro|tesla|\btitan\b|\bgrid\b|\bnvs\b|\bcmp \d|\bnvidia graphics|\brtx\b|\bnvidia [a-z]{1,2}\d"
    r"|radeon|firepro|instinct|\barc\b.*graphics|graphics$|(?:uhd|hd|iris|vega).*graphics|graphics processing unit"
    r"|video ?controller|contr\S+ (?:de )?v[ií]d[eé]o|ビデオ ?コントローラ|视频控制器|視訊控制器|비디오 ?컨트롤러"
    r"|видеоконтроллер|kontroler wideo"
    r"|vga|basic display|display adapter",
    re.IGNORECASE,
)
_NO_GPU = re.compile(
    r"audio|usb|ucsi|type-c|\broot\b|bridge|switch|port\b|ethernet|network|controller hub", re.IGNORECASE
)
_LONGEST_NAME = 200
_NO_SRIOV = "Unfortunately, this machine doesn't support using them in a VM."
_BEGINNING = "Generating a list of PCI Express endpoint devices"
_MOST_REASONS = 20
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


def read(text: str) -> FileObservations:
    """The GPUs of the listing. Raises Misread."""
    blocks = list(_blocks(text))
    if not any(_has_result(block) for block in blocks):
        raise Misread("has no device that SurveyDDA.ps1 judged: its judgements are redirected by *> and not by >")
    return FileObservations(
        resources=_host(text),
        functions=tuple(_function(block) for block in blocks if _is_gpu(block)),
        every_gpu=_BEGINNING in text,
    )


def _host(text: str) -> Mapping[str, Mapping[str, State]]:
    """Hyper-V's refusal of SR-IOV, with its reasons. The survey says nothing of it where Hyper-V does not refuse."""
    _, refused, behind = text.partition(_NO_SRIOV)
    if not refused:
        return {}
    reasons = [line.strip() for line in behind.splitlines() if line.strip()]
    return {
        "HyperVHost": {"": {"iov_support": Observation(False), "iov_reasons": Observation(reasons[:_MOST_REASONS])}}
    }


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
    name = name[:_LONGEST_NAME]
    return bool((_OF_NVIDIA.search(ids) or _GPU.search(name)) and not _NO_GPU.search(name))


def _function(block: list[str]) -> SeenFunction:
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
            f"winhost does not know what the survey says of it: {block[1][:_LONGEST_NAME]}"
        )
    for sentence, says in _SENTENCES:
        if sentence in whole:
            state.update(says)
    if instance:
        state["instance"] = Observation(instance[0])
    return SeenFunction(
        ids=instance[1].upper() if instance else "", state=state, location=location[1].upper() if location else None
    )
