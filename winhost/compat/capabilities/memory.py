"""Memory of the GPUs, and what of the host's they can have: pinned, unified."""

from packaging.version import Version

from winhost.compat.capabilities.gpu_cards import HUNG as RTX_PRO_6000
from winhost.compat.capabilities.gpu_cards import gpus, listed, named, several
from winhost.compat.capability import SHARED, capability, measure
from winhost.compat.rule import BLOCKS, NOTES, Finding, degraded, note, unsupported, unverified
from winhost.compat.target import Target
from winhost.hardware.cards import memory_of, partitions
from winhost.model.units import Bytes, GiB, about, size
from winhost.resources.host import Card
from winhost.sizing.budget import SHARE_WSL, SHARE_WSL_SEVERAL

KERNEL_THAT_PINS = Version("4.19.121")  # vLLM 0.33.0, platforms/cuda.py
VLLM_THAT_PINS = Version("0.24.0")  # the first with VLLM_WSL2_ENABLE_PIN_MEMORY
VLLM_WITHOUT_UVA = Version("0.30.0")  # the first that runs without pinned memory where that is model runner V2's way
PIN = "VLLM_WSL2_ENABLE_PIN_MEMORY=1"
HALF_GIB: Bytes = GiB // 2


# --- On the cards --------------------------------------------------------------------------------------------------


@capability("gpu-memory", on=SHARED, unknown=BLOCKS)
def windows_keeps_some(target: Target) -> Finding | None:
    """Of a single card."""
    if len(gpus(target)) == 1:
        return degraded("gpu-memory.behind-windows", observed=named(gpus(target)))
    return None


@capability("gpu-memory", on=SHARED, unknown=BLOCKS)
def windows_keeps_more_of_several(target: Target) -> Finding | None:
    """Loading over several cards fails earlier."""
    if several(target):
        return degraded("gpu-memory.several-behind-windows", observed=named(gpus(target)))
    return None


@capability("gpu-memory", on=SHARED, unknown=BLOCKS)
def more_than_the_host_has(target: Target) -> Finding | None:
    """What Windows shows of a card is backed by the host's memory."""
    vram = sum(map(memory_of, gpus(target)))
    if vram > target.facts.memory.total:
        observed = f"{size(vram)} on the cards, {about(target.facts.memory.total)} in the host"
        return unverified("gpu-memory.above-host", observed=observed)
    return None


@capability("gpu-memory", on=SHARED, unknown=BLOCKS)
def hidden_overhead(target: Target) -> Finding | None:
    """Told by one person."""
    cards = [card for card in gpus(target) if _is_rtx_pro_6000(card)]
    if cards:
        return unverified("gpu-memory.hidden-overhead", observed=named(cards))
    return None


def _is_rtx_pro_6000(card: Card) -> bool:
    gpu = listed(card)
    return bool(gpu and gpu.name.startswith(RTX_PRO_6000))


@capability("gpu-memory", on=SHARED, unknown=NOTES)
def spills_without_a_word(target: Target) -> Finding | None:
    """The switch of Windows' driver against it is not heard."""
    return note("gpu-memory.spills", observed=f"on {target.path}")


@capability("gpu-memory", on=SHARED, unknown=NOTES)
def exhaustion_stops_windows(target: Target) -> Finding | None:
    """What runs out inside takes the host along."""
    return note("gpu-memory.exhaustion-stops-windows", observed=f"on {target.path}")


@capability("gpu-memory", on=("gpu-p",), unknown=BLOCKS)
def slice_of_memory(target: Target) -> Finding | None:
    """A share of fixed size."""
    return degraded("gpu-memory.slice", observed=named(gpus(target)))


@measure("gpu-memory")
def memory(target: Target) -> str | None:
    """Of each card and in sum, and how much of it an engine can take."""
    each = sorted(map(memory_of, gpus(target)), reverse=True)
    if not each:
        return None
    if target.path == "gpu-p":
        return _largest_slice(target)
    text = " + ".join(map(size, each)) + (f" = {size(sum(each))}" if len(each) > 1 else "")
    if target.path not in SHARED:
        return text
    percent = SHARE_WSL_SEVERAL if len(each) > 1 else SHARE_WSL
    return f"{text}; of it {_rounded(sum(each) * percent // 100)} for engines ({percent} %)"


def _largest_slice(target: Target) -> str | None:
    """By the smallest number of parts that a card can be cut into."""
    cut = [(memory_of(card), partitions(target.facts, card)) for card in gpus(target)]
    slices = [_rounded(vram // min(gpu.valid_counts)) for vram, gpu in cut if gpu and gpu.valid_counts]
    return f"at most {', '.join(sorted(set(slices)))} for a VM" if slices else None


def _rounded(bytes_: Bytes) -> str:
    """Down to what a person reads."""
    return size(bytes_ // HALF_GIB * HALF_GIB)


# --- Pinned --------------------------------------------------------------------------------------------------------


@capability("pinned-memory", on=SHARED, unknown=BLOCKS)
def little_can_be_pinned(target: Target) -> Finding | None:
    """It works; what is out of date is that it does not."""
    return degraded("pinned-memory.little", observed=f"on {target.path}")


@capability("pinned-memory", on=SHARED, unknown=BLOCKS)
def kernel_does_not_pin(target: Target) -> Finding | None:
    """Kernels of 2020."""
    if target.kernel < KERNEL_THAT_PINS:
        return unsupported("pinned-memory.old-kernel", observed=f"kernel {target.kernel}")
    return None


@capability("pinned-memory", on=SHARED, unknown=BLOCKS)
def vllm_pins_nothing(target: Target) -> Finding | None:
    """It took WSL for a place without pinned memory."""
    if target.vllm < VLLM_THAT_PINS:
        return unsupported("pinned-memory.vllm-refuses", observed=f"vLLM {target.vllm}")
    return None


@capability("pinned-memory", on=SHARED, unknown=BLOCKS)
def vllm_needs_it(target: Target) -> Finding | None:
    """Model runner V2 reaches host memory by its address, which takes pinned memory."""
    if VLLM_THAT_PINS <= target.vllm < VLLM_WITHOUT_UVA:
        return degraded("pinned-memory.uva-needed", observed=f"vLLM {target.vllm}")
    return None


@capability("pinned-memory", on=SHARED, unknown=BLOCKS)
def vllm_leaves_it_off(target: Target) -> Finding | None:
    """Only whoever asks for it gets it."""
    if target.vllm >= VLLM_WITHOUT_UVA:
        return degraded("pinned-memory.switched-off", observed=f"vLLM {target.vllm}")
    return None


@measure("pinned-memory")
def pinned(target: Target) -> str | None:
    """How much, and by which setting."""
    if target.path in SHARED:
        return f"0.5 to 1 GiB in all, as reported; with {PIN} in vLLM's environment"
    if target.path in ("dual-boot", "bare-metal"):
        return f"up to the {about(target.facts.memory.total)} of the machine, less what else runs"
    return "up to the memory of the VM, less what else runs in it" if target.path == "dda" else None


# --- Unified -------------------------------------------------------------------------------------------------------


@capability("uvm", on=SHARED, unknown=BLOCKS)
def no_unified_memory(target: Target) -> Finding | None:
    """Managed memory is there, but not what it is for."""
    return unsupported("uvm.behind-windows", observed=f"on {target.path}")


@capability("uvm", on=("gpu-p",), unknown=BLOCKS)
def unified_memory_of_a_partition(target: Target) -> Finding | None:
    """For whole cards, and only where the hypervisor's side switches it on."""
    return unverified("uvm.partition", observed=named(gpus(target)))
