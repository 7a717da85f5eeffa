"""Rules of GPU memory, pinned host memory and unified memory."""

from packaging.version import Version

from winhost.compat.capability import SHARED, capability, measure
from winhost.compat.gpu_cards import HUNG as RTX_PRO_6000
from winhost.compat.gpu_cards import gpus, listed, named, several
from winhost.compat.rule import BLOCKS, NOTES, Finding, degraded, note, unsupported, unverified
from winhost.compat.target import Target
from winhost.hardware.cards import memory_of, partitions
from winhost.model.units import Bytes, GiB, about, size
from winhost.resources.host import Card
from winhost.sizing.card_memory import SHARE_WSL, SHARE_WSL_SEVERAL

KERNEL_THAT_PINS = Version("4.19.121")  # vLLM 0.33.0, platforms/cuda.py
VLLM_THAT_PINS = Version("0.24.0")  # the first with VLLM_WSL2_ENABLE_PIN_MEMORY
VLLM_WITHOUT_UVA = Version("0.30.0")  # the first that runs without pinned memory where that is model runner V2's way
PIN = "VLLM_WSL2_ENABLE_PIN_MEMORY=1"
HALF_GIB: Bytes = GiB // 2


# --- On the cards --------------------------------------------------------------------------------------------------


@capability("gpu-memory", on=SHARED, unknown=BLOCKS)
def windows_keeps_some(target: Target) -> Finding | None:
    """Windows keeps some of a single GPU's memory."""
    if len(gpus(target)) == 1:
        return degraded("gpu-memory.behind-windows", observed=named(gpus(target)))
    return None


@capability("gpu-memory", on=SHARED, unknown=BLOCKS)
def windows_keeps_more_of_several(target: Target) -> Finding | None:
    """Behind the Windows driver, loading over several GPUs fails at a lower share of their memory."""
    if several(target):
        return degraded("gpu-memory.several-behind-windows", observed=named(gpus(target)))
    return None


@capability("gpu-memory", on=SHARED, unknown=BLOCKS)
def more_than_the_host_has(target: Target) -> Finding | None:
    """The GPUs have more memory than the host, which was reported to break the GPU in WSL."""
    vram = sum(map(memory_of, gpus(target)))
    if vram > target.memory:
        observed = f"{size(vram)} on the GPUs, {about(target.memory)} in the host"
        return unverified("gpu-memory.above-host", observed=observed)
    return None


@capability("gpu-memory", on=SHARED, unknown=BLOCKS)
def hidden_overhead(target: Target) -> Finding | None:
    """One report: 16 GiB of an RTX PRO 6000 were missing in WSL."""
    cards = [card for card in gpus(target) if _is_rtx_pro_6000(card)]
    if cards:
        return unverified("gpu-memory.hidden-overhead", observed=named(cards))
    return None


def _is_rtx_pro_6000(card: Card) -> bool:
    gpu = listed(card)
    return bool(gpu and gpu.name.startswith(RTX_PRO_6000))


@capability("gpu-memory", on=SHARED, unknown=NOTES)
def spills_without_a_word(target: Target) -> Finding | None:
    """GPU memory silently spills to host memory; the driver setting against it has no effect in WSL."""
    return note("gpu-memory.spills", observed=f"on {target.path}")


@capability("gpu-memory", on=SHARED, unknown=NOTES)
def exhaustion_stops_windows(target: Target) -> Finding | None:
    """GPU memory that runs out inside WSL can crash Windows."""
    return note("gpu-memory.exhaustion-stops-windows", observed=f"on {target.path}")


@capability("gpu-memory", on=("gpu-p",), unknown=BLOCKS)
def slice_of_memory(target: Target) -> Finding | None:
    """A partition has a fixed share of one GPU's memory."""
    return degraded("gpu-memory.slice", observed=named(gpus(target)))


@measure("gpu-memory")
def memory(target: Target) -> str | None:
    """Memory of each GPU and in total, and how much of it engines can use."""
    each = sorted(map(memory_of, gpus(target)), reverse=True)
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
    cut = [(memory_of(card), partitions(target.facts, card)) for card in gpus(target)]
    counts = [(vram, [count for count in gpu.valid_counts if count > 0]) for vram, gpu in cut if gpu]
    slices = [_rounded(vram // min(valid)) for vram, valid in counts if valid]
    return f"at most {', '.join(sorted(set(slices)))} for a VM" if slices else None


def _rounded(bytes_: Bytes) -> str:
    """Rounded down to half a GiB."""
    return size(bytes_ // HALF_GIB * HALF_GIB)


# --- Pinned --------------------------------------------------------------------------------------------------------


@capability("pinned-memory", on=SHARED, unknown=BLOCKS)
def little_can_be_pinned(target: Target) -> Finding | None:
    """WSL can pin memory, about 1 GiB at most as reported."""
    return degraded("pinned-memory.little", observed=f"on {target.path}")


@capability("pinned-memory", on=SHARED, unknown=BLOCKS)
def kernel_does_not_pin(target: Target) -> Finding | None:
    """vLLM does not pin memory in WSL on kernels before 4.19.121."""
    if target.kernel < KERNEL_THAT_PINS:
        return unsupported("pinned-memory.old-kernel", observed=f"kernel {target.kernel}")
    return None


@capability("pinned-memory", on=SHARED, unknown=BLOCKS)
def vllm_pins_nothing(target: Target) -> Finding | None:
    """vLLM before 0.24 never pins memory in WSL."""
    if target.vllm < VLLM_THAT_PINS:
        return unsupported("pinned-memory.vllm-refuses", observed=f"vLLM {target.vllm}")
    return None


@capability("pinned-memory", on=SHARED, unknown=BLOCKS)
def vllm_needs_it(target: Target) -> Finding | None:
    """vLLM 0.24 to 0.29 does not start in WSL without pinned memory (model runner V2 needs UVA)."""
    if VLLM_THAT_PINS <= target.vllm < VLLM_WITHOUT_UVA:
        return degraded("pinned-memory.uva-needed", observed=f"vLLM {target.vllm}")
    return None


@capability("pinned-memory", on=SHARED, unknown=BLOCKS)
def vllm_leaves_it_off(target: Target) -> Finding | None:
    """vLLM 0.30 and newer pin memory in WSL only when VLLM_WSL2_ENABLE_PIN_MEMORY=1 is set."""
    if target.vllm >= VLLM_WITHOUT_UVA:
        return degraded("pinned-memory.switched-off", observed=f"vLLM {target.vllm}")
    return None


@measure("pinned-memory")
def pinned(target: Target) -> str | None:
    """How much memory can be pinned, and with which setting."""
    measured = target.measurement
    if measured and measured.found.pinned:
        return f"{size(measured.found.pinned.bytes)} or more, as measured; with {PIN} in vLLM's environment"
    if target.path in SHARED:
        return f"0.5 to 1 GiB in total, as reported; with {PIN} in vLLM's environment"
    if target.path in ("dual-boot", "bare-metal"):
        return f"up to the {about(target.memory)} of the machine, minus what else runs"
    return "up to the memory of the VM, minus what else runs in it" if target.path == "dda" else None


# --- Unified -------------------------------------------------------------------------------------------------------


@capability("uvm", on=SHARED, unknown=BLOCKS)
def no_unified_memory(target: Target) -> Finding | None:
    """Behind the Windows driver managed memory can neither exceed the GPU's nor be accessed concurrently."""
    return unsupported("uvm.behind-windows", observed=f"on {target.path}")


@capability("uvm", on=("gpu-p",), unknown=BLOCKS)
def unified_memory_of_a_partition(target: Target) -> Finding | None:
    """vGPUs have unified memory only as whole GPUs, where the hypervisor enables it."""
    return unverified("uvm.partition", observed=named(gpus(target)))
