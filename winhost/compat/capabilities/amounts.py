"""Describes the amounts of capabilities: memory, and measured rates. They are orders of magnitude, not promises.

Rates were measured on passed-through H200 GPUs (PCI Express 5.0 x16) in a Linux VM with driver 580: evidence
`copies-measured` and `suspend-measured`. There are no measurements behind the Windows driver.
"""

from winhost.compat.capability import MEASURES, Measure, measure
from winhost.compat.target import Target, gpus_if_several, gpus_with_nvlink, name_gpus
from winhost.hardware.gpus import NvLink
from winhost.hardware.host_gpus import gpu_memory, sriov_gpu
from winhost.model.path import SHARED_GPU_PATHS, WHOLE_GPU_PATHS
from winhost.model.units import Bytes, GiB, about, size
from winhost.sizing.memories import SHARE_WSL, SHARE_WSL_SEVERAL

GB: Bytes = 10**9
HALF_GIB: Bytes = GiB // 2
PINNED_RATE = 55.6  # GB/s from host memory to the GPU
PAGEABLE_RATE = 10.8
PINNED_RATE_DOWN = 55.5  # GB/s from the GPU to host memory
PAGEABLE_RATE_DOWN = 20.2
DISK_RATE = 2.4  # GB/s from a file to the GPU, with the page cache dropped before
CACHE_RATE = 10.5
PIN_SETTING = "VLLM_WSL2_ENABLE_PIN_MEMORY=1"

_FILES = f"{DISK_RATE} GB/s from a disk and {CACHE_RATE} GB/s from the page cache, as measured"
WHOLE_GPU_AMOUNTS = {
    "cuda-checkpoint": "suspended at 2.6 GiB/s and resumed at 7.6 GiB/s, as measured: 24 GiB in 9.3 s and 3.2 s",
    "sleep-l2": _FILES,
    "streaming-loaders": f"plain reads: {_FILES}",
    "kv-write-through": "6.5 GB/s in blocks of 16 KiB, one copy each, and 55.5 GB/s in bulk, "
    "measured on an H200 into pinned memory",
    "async-checkpoints": f"{PINNED_RATE_DOWN} GB/s into pinned and {PAGEABLE_RATE_DOWN} GB/s into pageable memory, "
    "measured on an H200",
}


def seconds(bytes_: Bytes, rate: float) -> str:
    """Format how long a copy takes at `rate` GB/s, such as `0.9 s`."""
    return f"{bytes_ / GB / rate:.1f} s"


def _whole_gpu_measure(text: str) -> Measure:
    return lambda target: text if target.path in WHOLE_GPU_PATHS else None


MEASURES.update({name: _whole_gpu_measure(text) for name, text in WHOLE_GPU_AMOUNTS.items()})


@measure("compressed-checkpoints")
def ratios(_: Target) -> str | None:
    """Describe compression ratios: BF16 as measured, the others as published."""
    smaller = "1.45 times smaller in BF16, 1.1 to 1.2 in FP8, at most 1.05 in 4 bit"
    return f"{smaller}; loaded 1.4 times as fast from storage of 1 and 3 GB/s on an H100"


@measure("multi-gpu")
def gpu_count(target: Target) -> str | None:
    return name_gpus(gpus_if_several(target)) or None


@measure("gpu-memory")
def memory(target: Target) -> str | None:
    """Describe the memory of each GPU and in total, and how much of it engines can use."""
    each = sorted(map(gpu_memory, target.gpus), reverse=True)
    if not each:
        return None
    if target.path == "gpu-p":
        return _largest_slice(target)
    text = " + ".join(map(size, each)) + (f" = {size(sum(each))}" if len(each) > 1 else "")
    if target.path not in SHARED_GPU_PATHS:
        return text
    percent = SHARE_WSL_SEVERAL if len(each) > 1 else SHARE_WSL
    return f"{text}; of these {_size_rounded_down(sum(each) * percent // 100)} for engines ({percent} %)"


def _largest_slice(target: Target) -> str | None:
    """Describe the largest partition: a GPU's memory divided by its smallest partition count."""
    cut = [(gpu_memory(gpu), sriov_gpu(target.facts, gpu)) for gpu in target.gpus]
    counts = [(vram, [count for count in split.valid_counts if count > 0]) for vram, split in cut if split]
    slices = [_size_rounded_down(vram // min(valid)) for vram, valid in counts if valid]
    return f"at most {', '.join(sorted(set(slices)))} for a VM" if slices else None


def _size_rounded_down(bytes_: Bytes) -> str:
    """Format a size, rounded down to half a GiB."""
    return size(bytes_ // HALF_GIB * HALF_GIB)


@measure("pinned-memory")
def pinned_memory(target: Target) -> str | None:
    """Describe how much memory can be pinned, and the setting that this needs."""
    measured = target.measurement
    if measured and measured.found.pinned:
        return f"{size(measured.found.pinned.bytes)} or more, as measured; with {PIN_SETTING} in vLLM's environment"
    if target.path in SHARED_GPU_PATHS:
        return f"0.5 to 1 GiB in total, as reported; with {PIN_SETTING} in vLLM's environment"
    if target.path in ("dual-boot", "bare-metal"):
        return f"up to the {about(target.memory)} of the machine, minus what else runs"
    return "up to the memory of the VM, minus what else runs in it" if target.path == "dda" else None


@measure("sleep-l1")
def wake_rate(target: Target) -> str | None:
    """Describe the best rate at which weights return to the GPU, and the time for all GPU memory."""
    vram = sum(map(gpu_memory, target.gpus))
    if not vram or target.path not in (*WHOLE_GPU_PATHS, *SHARED_GPU_PATHS):
        return None
    rate, kind = (PAGEABLE_RATE, "pageable") if target.path in SHARED_GPU_PATHS else (PINNED_RATE, "pinned")
    where = (
        "on Linux with its own driver, not in WSL" if target.path in SHARED_GPU_PATHS else "on an H200 (PCIe 5.0 x16)"
    )
    return f"{rate} GB/s from {kind} memory, measured {where}: {size(vram)} in {seconds(vram, rate)} at best"


@measure("kv-peer-copies")
def peer_copy_rate(target: Target) -> str | None:
    if target.path not in WHOLE_GPU_PATHS or not gpus_with_nvlink(gpus_if_several(target), NvLink.BOARD):
        return None
    return "396 GB/s in bulk and 1.3 GB/s in blocks of 16 KiB, one copy each, measured between two H200 over NVLink"
