"""Metrics of the GPUs, which the keeper reads.

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

_CACHE_S = 1.0
_TEXT = re.compile(r"[^ -!#-\[\]-~]")  # characters that a label cannot contain without escapes
_THROTTLES = (  # bits of nvmlClocksThrottleReasons, without GpuIdle
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
    "hw_gpu_memory_usage_bytes": ("gauge", "Memory that is in use."),
    "hw_gpu_utilization_ratio": ("gauge", "Share of time in which the GPU computed."),
    "hw_temperature_celsius": ("gauge", "Temperature of the GPU."),
    "hw_power_watts": ("gauge", "Power that the GPU takes."),
    "winhost_gpu_power_limit_watts": ("gauge", "Power that the GPU may take."),
    "hw_energy_joules_total": ("counter", "Energy since the driver was loaded."),
    "winhost_gpu_throttled": ("gauge", "1 if clocks are reduced for this reason."),
    "hw_errors_total": ("counter", "Errors of memory since the driver was loaded, and Xids since the keeper started."),
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
"""The metric's name, the keeper's name, the factor from its unit, and labels."""


class GpuMetrics:
    """The metrics of all GPUs. read_gpus: asks the keeper for their state; None if there is no keeper."""

    def __init__(self, read_gpus: "Callable[[], Awaitable[list[dict[str, Any]]]] | None") -> None:
        self._read_gpus = read_gpus
        self._lock = asyncio.Lock()
        self._read_at, self._lines = float("-inf"), [""]

    async def lines(self) -> "list[str]":
        """Return the lines, read at most a second ago; none without a keeper."""
        if self._read_gpus is None:
            return []
        async with self._lock:
            if time.monotonic() - self._read_at >= _CACHE_S:
                try:
                    gpus: list[dict[str, Any]] | None = await self._read_gpus()
                except KeeperFault:
                    gpus = None
                meaning = "1 if the keeper could read the GPUs, 0 if not."
                read = family("gpus_read", "gauge", meaning, [({}, int(gpus is not None))])
                self._lines = [*read, *(gpu_lines(gpus) if gpus is not None else ())]
                self._read_at = time.monotonic()
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
        identity = {name: _TEXT.sub("_", text) for name, text in texts.items() if text}
        samples += [(name, {**identity, **labels}, value) for name, labels, value in _samples(gpu)]
    for name, (kind, meaning) in _FAMILIES.items():
        family_samples = ((labels, value) for family_name, labels, value in samples if family_name == name)
        yield from family(name, kind, meaning, family_samples, prefix="")


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
