"""Metrics of the GPUs, as the keeper reads them.

Names are those of OpenTelemetry's semantic conventions for hardware where these have one (hw.gpu, hw.temperature,
hw.power, hw.energy, hw.errors, hw.status), written as Prometheus writes them; others begin with `winhost_gpu_`.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from .gateway_metrics import family
from .keeper_client import KeeperFault

_HOLDS_S = 1.0
_TEXT = re.compile(r"[^ -!#-\[\]-~]")  # characters that a label cannot contain as they are
_THROTTLES = (  # bits of nvmlClocksThrottleReasons; being idle is none
    ("applications_clocks", 0x2),
    ("software_power_cap", 0x4),
    ("hardware_slowdown", 0x8),
    ("sync_boost", 0x10),
    ("software_thermal", 0x20),
    ("hardware_thermal", 0x40),
    ("hardware_power_brake", 0x80),
    ("display_clocks", 0x100),
)
_GPU = {"hw_type": "gpu"}
_FAMILIES = {
    "hw_gpu_memory_limit_bytes": ("gauge", "Memory of the GPU."),
    "hw_gpu_memory_usage_bytes": ("gauge", "Memory that is used."),
    "hw_gpu_utilization_ratio": ("gauge", "Share of time in which it computed."),
    "hw_temperature_celsius": ("gauge", "Temperature of the GPU."),
    "hw_power_watts": ("gauge", "Power that it takes."),
    "winhost_gpu_power_limit_watts": ("gauge", "Power that it may take."),
    "hw_energy_joules_total": ("counter", "Energy since the driver was loaded."),
    "winhost_gpu_throttled": ("gauge", "1 where clocks are held down for this reason."),
    "hw_errors_total": ("counter", "Errors of memory since the driver was loaded, and Xids since the keeper looks."),
    "hw_status": ("gauge", "1 for the state that the GPU is in."),
}
_PLAIN: "tuple[tuple[str, str, float, dict[str, str]], ...]" = (
    ("hw_gpu_memory_limit_bytes", "total", 1, {}),
    ("hw_gpu_memory_usage_bytes", "used", 1, {}),
    ("hw_gpu_utilization_ratio", "busy_percent", 0.01, {}),
    ("hw_temperature_celsius", "celsius", 1, {}),
    ("hw_power_watts", "milliwatts", 0.001, _GPU),
    ("winhost_gpu_power_limit_watts", "limit_milliwatts", 0.001, {}),
    ("hw_energy_joules_total", "millijoules", 0.001, _GPU),
)
"""Name, the keeper's name, its unit, and labels."""


class GpuMetrics:
    """The metrics of all GPUs. look: asks the keeper; None if there is none."""

    def __init__(self, look: "Callable[[], Awaitable[list[dict[str, Any]]]] | None") -> None:
        self._look = look
        self._lock = asyncio.Lock()
        self._at, self._lines = float("-inf"), [""]

    async def lines(self) -> "list[str]":
        """The lines, read at most a second ago; none without a keeper."""
        if self._look is None:
            return []
        async with self._lock:
            if time.monotonic() - self._at >= _HOLDS_S:
                try:
                    gpus: list[dict[str, Any]] | None = await self._look()
                except KeeperFault:
                    gpus = None
                meaning = "1 where the keeper could ask the driver, 0 where it could not."
                read = family("gpus_read", "gauge", meaning, [({}, int(gpus is not None))])
                self._lines = [*read, *(gpu_lines(gpus) if gpus is not None else ())]
                self._at = time.monotonic()
            return self._lines


def gpu_lines(gpus: "list[dict[str, Any]]") -> Iterable[str]:
    samples: list[tuple[str, dict[str, str], float]] = []
    for gpu in gpus:
        index = str(gpu.get("index"))
        texts = {
            "hw_id": str(gpu.get("uuid") or index),
            "hw_name": f"GPU {index}",
            "hw_model": str(gpu.get("name", "")),
        }
        own = {name: _TEXT.sub("_", text) for name, text in texts.items() if text}
        samples += [(name, {**own, **labels}, value) for name, labels, value in _samples(gpu)]
    for name, (kind, meaning) in _FAMILIES.items():
        mine = ((labels, value) for family_name, labels, value in samples if family_name == name)
        yield from family(name, kind, meaning, mine, prefix="")


def _samples(gpu: "dict[str, Any]") -> "Iterable[tuple[str, dict[str, str], float]]":
    for name, key, unit, labels in _PLAIN:
        if (value := _number(gpu.get(key))) is not None:
            yield name, labels, round(value * unit, 3)
    if (bits := _number(gpu.get("throttled"))) is not None:
        for reason, bit in _THROTTLES:
            yield "winhost_gpu_throttled", {"reason": reason}, int(bool(bits & bit))
    for kind, count in _errors(gpu).items():
        yield "hw_errors_total", {**_GPU, "error_type": kind}, count
    if isinstance(lost := gpu.get("lost"), bool):
        yield "hw_status", {**_GPU, "hw_state": "ok"}, int(not lost)
        yield "hw_status", {**_GPU, "hw_state": "failed"}, int(lost)


def _errors(gpu: "dict[str, Any]") -> "dict[str, int]":
    found = {kind: _number(gpu.get(f"ecc_{kind}")) for kind in ("corrected", "uncorrected")}
    xids = gpu.get("xids")
    for xid, count in xids.items() if isinstance(xids, dict) else ():
        if str(xid).isdecimal():
            found[f"xid_{xid}"] = _number(count)
    return {kind: count for kind, count in found.items() if count is not None}


def _number(value: Any) -> "int | None":
    return value if type(value) is int and value >= 0 else None
