"""The findings of a probe in a simulated WSL: NVIDIA's pages and reports, with rates that are made up."""

from typing import Any

from winhost.core.answers import Json
from winhost.lab.linux.linux_machine import KERNEL, Linux
from winhost.model.units import GiB, MiB
from winhost.resources.windows.pci_device import DISPLAY

_NOT_SUPPORTED = {"number": 801, "name": "CUDA_ERROR_NOT_SUPPORTED"}
# The call that says no behind Windows' driver.
_REFUSED = {"ipc-fd": "cuMemCreate", "checkpoint": "cuCheckpointProcessLock"}
_RATES = {"pageable_up": 6.0, "pageable_down": 6.0, "pinned_up": 12.0, "pinned_down": 12.0}


def probe_answer(linux: Linux, request: Json) -> dict[str, Any]:
    """One answer, with the parts that were asked for."""
    if linux.own:
        return _unmeasured(linux, request["parts"])
    devices = linux.machine.devices if linux.driver else []
    shown = [each for each in devices if _is_gpu(each.key["device"], each.known_or("base_class", None))]
    number, parts = len(shown), request["parts"]
    gpus = [_gpu(index, str(gpu.known_or("name", "NVIDIA GPU"))) for index, gpu in enumerate(shown)]
    links = [{"source": a, "target": b, "access": False} for a in range(number) for b in range(number) if a != b]
    found: dict[str, Any] = {
        "driver": {"cuda": "13.0", "gpus": gpus},
        "shm": {"shm": {"total": 16 * GiB, "free": 16 * GiB, "usable": True, "memlock": None}},
        "copies": {"copies": [{"gpu": index, "bytes": 256 * MiB, **_RATES} for index in range(number)]},
        "peers": {"peers": links},
        "ipc-legacy": {"ipc_legacy": True},
        "video": {
            "video": {
                "decodes": True,
                "engines": 1,
                "encodes": None,
                "ffmpeg": None,
                "why": "encoding was not tried: no ffmpeg",
            }
        },
        "managed": {"managed": {"works": True, "concurrent": None, "offered": False}},
        "pin-limit": {"pinned": {"bytes": 896 * MiB, "ended": "CUDA_ERROR_OUT_OF_MEMORY"}},
    }
    answer: dict[str, Any] = {"ok": True, "kernel": KERNEL, "outcomes": [_outcome(part, number) for part in parts]}
    for part in parts:
        answer |= found.get(part, {}) if number else {}
    return answer


def _unmeasured(linux: Linux, parts: list[str]) -> dict[str, Any]:
    """No page tells enough about a Linux on a machine of its own to make up measurements."""
    why = {"outcome": "skipped", "seconds": 0.0, "why": "the simulator measures no Linux of its own", "error": None}
    kernel = next(linux.system()).state["kernel"]
    return {"ok": True, "kernel": kernel, "outcomes": [{"part": part, **why} for part in parts]}


def _is_gpu(device: str, base_class: Json) -> bool:
    return device.startswith("VEN_10DE&") and base_class == DISPLAY


def _gpu(index: int, name: str) -> dict[str, Any]:
    return {
        "index": index,
        "name": name,
        "location": f"0000:{index + 1:02x}:00.0",
        "total": 24 * GiB,
        "free": 23 * GiB,
        "compute_capability": "8.9",
        "unified_addressing": True,
        "concurrent_managed": False,
        "fd_handles": False,
        "nvlinks": None,
    }


def _outcome(part: str, number: int) -> dict[str, Any]:
    whole = {"part": part, "outcome": "done", "seconds": 0.1, "why": None, "error": None}
    if part == "shm":
        return whole
    if not number:
        return whole | _failed({"call": "cuInit", "number": 100, "name": "CUDA_ERROR_NO_DEVICE"})
    if part in _REFUSED:
        return whole | _failed({"call": _REFUSED[part], **_NOT_SUPPORTED})
    if part in ("peers", "nccl") and number == 1:
        return whole | {"outcome": "skipped", "why": "there are fewer than two GPUs"}
    if part in ("nccl", "container"):
        return whole | {"outcome": "skipped", "why": "the simulator has none"}
    return whole


def _failed(error: dict[str, Any]) -> dict[str, Any]:
    return {"outcome": "failed", "why": f"{error['call']}: {error['name']} ({error['number']})", "error": error}
