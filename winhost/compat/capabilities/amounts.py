"""Amounts of capabilities: memory, and rates as they were measured. Orders of magnitude, not promises.

Rates were measured on passed-through H200 GPUs (PCI Express 5.0 x16) in a Linux VM with driver 580: evidence
`copies-measured` and `suspend-measured`. Behind the Windows driver nobody measured any.
"""

from winhost.compat.capability import MEASURES, Measure, measure
from winhost.compat.target import Target, linked, named, several
from winhost.hardware.gpus import NvLink
from winhost.hardware.host_gpus import gpu_memory, sriov_gpu
from winhost.model.path import SHARED, WHOLE_GPU
from winhost.model.units import Bytes, GiB, about, size
from winhost.sizing.memories import SHARE_WSL, SHARE_WSL_SEVERAL

GB: Bytes = 10**9
HALF_GIB: Bytes = GiB // 2
PINNED = 55.6  # GB/s from host memory to the GPU
PAGEABLE = 10.8
PINNED_DOWN = 55.5  # GB/s from the GPU to host memory
PAGEABLE_DOWN = 20.2
FROM_DISK = 2.4  # GB/s from a file to the GPU, with the page cache dropped before
FROM_CACHE = 10.5
PIN = "VLLM_WSL2_ENABLE_PIN_MEMORY=1"

_FILES = f"{FROM_DISK} GB/s from a disk and {FROM_CACHE} GB/s from the page cache, as measured"
ON_WHOLE_GPUS = {
    "cuda-checkpoint": "suspended at 2.6 GiB/s and resumed at 7.6 GiB/s, as measured: 24 GiB in 9.3 s and 3.2 s",
    "sleep-l2": _FILES,
    "streaming-loaders": f"plain reads: {_FILES}",
    "kv-write-through": "6.5 GB/s in blocks of 16 KiB, one copy each, and 55.5 GB/s in bulk, "
    "measured on an H200 into pinned memory",
    "async-checkpoints": f"{PINNED_DOWN} GB/s into pinned and {PAGEABLE_DOWN} GB/s into pageable memory, "
    "measured on an H200",
}


def seconds(bytes_: Bytes, rate: float) -> str:
    """`0.9 s`: how long a copy takes at `rate` GB/s."""
    return f"{bytes_ / GB / rate:.1f} s"


def _on_whole_gpus(text: str) -> Measure:
    return lambda target: text if target.path in WHOLE_GPU else None


MEASURES.update({name: _on_whole_gpus(text) for name, text in ON_WHOLE_GPUS.items()})


@measure("compressed-checkpoints")
def ratios(_: Target) -> str | None:
    """BF16 as measured, the rest as published."""
    smaller = "1.45 times smaller in BF16, 1.1 to 1.2 in FP8, at most 1.05 in 4 bit"
    return f"{smaller}; loaded 1.4 times as fast from storage of 1 and 3 GB/s on an H100"


@measure("multi-gpu")
def how_many(target: Target) -> str | None:
    return named(several(target)) or None


@measure("gpu-memory")
def memory(target: Target) -> str | None:
    """Memory of each GPU and in total, and how much of it engines can use."""
    each = sorted(map(gpu_memory, target.gpus), reverse=True)
    if not each:
        return None
    if target.path == "gpu-p":
        return _largest_slice(target)
    text = " + ".join(map(size, each)) + (f" = {size(sum(each))}" if len(each) > 1 else "")
    if target.path not in SHARED:
        return text
    percent = SHARE_WSL_SEVERAL if len(each) > 1 else SHARE_WSL
    return f"{text}; of these {_rounded(sum(each) * percent // 100)} for engines ({percent} %)"


def _largest_slice(target: Target) -> str | None:
    """Largest partition: a GPU's memory divided by its smallest partition count."""
    cut = [(gpu_memory(gpu), sriov_gpu(target.facts, gpu)) for gpu in target.gpus]
    counts = [(vram, [count for count in split.valid_counts if count > 0]) for vram, split in cut if split]
    slices = [_rounded(vram // min(valid)) for vram, valid in counts if valid]
    return f"at most {', '.join(sorted(set(slices)))} for a VM" if slices else None


def _rounded(bytes_: Bytes) -> str:
    """Rounded down to half a GiB."""
    return size(bytes_ // HALF_GIB * HALF_GIB)


@measure("pinned-memory")
def pinned(target: Target) -> str | None:
    """The amount of memory that can be pinned, and the setting that it needs."""
    measured = target.measurement
    if measured and measured.found.pinned:
        return f"{size(measured.found.pinned.bytes)} or more, as measured; with {PIN} in vLLM's environment"
    if target.path in SHARED:
        return f"0.5 to 1 GiB in total, as reported; with {PIN} in vLLM's environment"
    if target.path in ("dual-boot", "bare-metal"):
        return f"up to the {about(target.memory)} of the machine, minus what else runs"
    return "up to the memory of the VM, minus what else runs in it" if target.path == "dda" else None


@measure("sleep-l1")
def wakes_at(target: Target) -> str | None:
    """Rate at which weights return to the GPU, at best, and the time for all GPU memory."""
    vram = sum(map(gpu_memory, target.gpus))
    if not vram or target.path not in (*WHOLE_GPU, *SHARED):
        return None
    rate, kind = (PAGEABLE, "pageable") if target.path in SHARED else (PINNED, "pinned")
    where = "on Linux with its own driver, not in WSL" if target.path in SHARED else "on an H200 (PCIe 5.0 x16)"
    return f"{rate} GB/s from {kind} memory, measured {where}: {size(vram)} in {seconds(vram, rate)} at best"


@measure("kv-peer-copies")
def blocks_cross_at(target: Target) -> str | None:
    if target.path not in WHOLE_GPU or not linked(several(target), NvLink.BOARD):
        return None
    return "396 GB/s in bulk and 1.3 GB/s in blocks of 16 KiB, one copy each, measured between two H200 over NVLink"
