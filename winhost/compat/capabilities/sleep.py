"""Rules of vLLM's sleep mode, by which models take turns on a GPU."""

from packaging.version import Version

from winhost.compat.capabilities.copies import FROM_CACHE, FROM_DISK, PAGEABLE, PINNED, seconds
from winhost.compat.capabilities.memory import VLLM_THAT_PINS, VLLM_WITHOUT_UVA
from winhost.compat.capabilities.parallel import replicas_on_one_gpu
from winhost.compat.capability import EVERYWHERE, SHARED, WHOLE_CARD, capability, measure
from winhost.compat.gpu_cards import gpus
from winhost.compat.rule import BLOCKS, NOTES, Finding, degraded, note, unsupported, unverified
from winhost.compat.target import Target
from winhost.hardware.cards import memory_of
from winhost.model.units import about, size

VLLM_QUEUES = Version("0.17.0")  # the first with vllm-project/vllm PR 34528
VLLM_REPLICAS_SLEEP = Version("0.24.0")  # the first with PR 44483
VLLM_WITH_OTHER_RUNNER = Version("0.24.0")  # measured to sleep unpinned with model runner V1; the only one
VLLM_KEEPS_ADAPTERS = Version("0.33.0")  # the first that was seen to keep LoRA's state; #53888, closed by PR 53508

# --- Both levels ---------------------------------------------------------------------------------------------------


@capability("sleep-l1", on=EVERYWHERE, unknown=BLOCKS)
@capability("sleep-l2", on=EVERYWHERE, unknown=BLOCKS)
@capability("sleep-data-parallel", on=EVERYWHERE, unknown=BLOCKS)
def request_while_asleep(target: Target) -> Finding | None:
    """A request to a sleeping engine kills it before vLLM 0.17, and hangs from then on."""
    observed = f"vLLM {target.vllm}"
    if target.vllm < VLLM_QUEUES:
        return degraded("sleep-l1.request-kills", observed=observed)
    return note("sleep-l1.request-hangs", observed=observed)


@capability("sleep-l1", on=EVERYWHERE, unknown=NOTES)
@capability("sleep-l2", on=EVERYWHERE, unknown=NOTES)
@capability("sleep-data-parallel", on=EVERYWHERE, unknown=NOTES)
def whoever_reaches_it_commands_it(target: Target) -> Finding | None:
    """Sleep is controlled through development endpoints, which need no API key."""
    return note("sleep-l1.open-endpoints", observed=f"on {target.variant}")


@capability("sleep-l1", on=EVERYWHERE, unknown=NOTES)
@capability("sleep-l2", on=EVERYWHERE, unknown=NOTES)
def one_at_a_time(target: Target) -> Finding | None:
    """Engines on the same GPU do not coordinate, so one must be asleep before another wakes."""
    return note("sleep-l1.one-at-a-time", observed=f"on {target.variant}")


# --- Level 1: weights wait in host memory --------------------------------------------------------------------------


@capability("sleep-l1", on=SHARED, unknown=BLOCKS)
def weights_wait_in_pageable_memory(target: Target) -> Finding | None:
    """Behind the Windows driver vLLM keeps sleeping weights in pageable memory by default."""
    observed = f"vLLM {target.vllm}"
    if target.vllm < VLLM_THAT_PINS:
        return degraded("sleep-l1.pageable", observed=observed)
    return degraded("sleep-l1.pageable-by-default", observed=observed)


@capability("sleep-l1", on=SHARED, unknown=BLOCKS)
def starts_only_with_pinned_memory(target: Target) -> Finding | None:
    """These vLLM versions start in WSL only with pinned memory, and then pin twice the weights."""
    observed = f"vLLM {target.vllm}"
    if target.vllm == VLLM_WITH_OTHER_RUNNER:
        return degraded("sleep-l1.other-runner", observed=observed)
    if VLLM_THAT_PINS <= target.vllm < VLLM_WITHOUT_UVA:
        return unverified("sleep-l1.pins-to-start", observed=observed)
    return None


@capability("sleep-l1.adapters-corrupted", on=SHARED)
def adapters_wake_corrupted(target: Target) -> str | None:
    """In WSL, vLLM before 0.33 answers wrongly after waking with LoRA adapters, without an error."""
    if target.vllm < VLLM_KEEPS_ADAPTERS:
        return f"vLLM {target.vllm}"
    return None


@capability("sleep-l1", on=(*WHOLE_CARD, *SHARED), unknown=BLOCKS)
@capability("cuda-checkpoint", on=WHOLE_CARD, unknown=BLOCKS)
def more_on_the_cards_than_in_memory(target: Target) -> Finding | None:
    """The GPUs have more memory than the host, so not all of it can be moved to host memory."""
    vram, memory = sum(map(memory_of, gpus(target))), target.memory
    if vram > memory:
        return degraded("sleep-l1.above-memory", observed=f"{size(vram)} on the GPUs, {about(memory)} in the host")
    return None


@measure("sleep-l1")
def wakes_at(target: Target) -> str | None:
    """Rate at which weights return to the GPU, at best, and the time for all GPU memory."""
    vram = sum(map(memory_of, gpus(target)))
    if not vram or target.path not in (*WHOLE_CARD, *SHARED):
        return None
    rate, kind = (PAGEABLE, "pageable") if target.path in SHARED else (PINNED, "pinned")
    where = "on Linux with its own driver, not in WSL" if target.path in SHARED else "on an H200 (PCIe 5.0 x16)"
    return f"{rate} GB/s from {kind} memory, measured {where}: {size(vram)} in {seconds(vram, rate)} at best"


# --- Level 2: weights come from disk again -------------------------------------------------------------------------


@capability("sleep-l2.three-steps", on=EVERYWHERE)
def wakes_in_three_steps(target: Target) -> str | None:
    """Waking from level 2 takes three calls; the first alone leaves an engine without weights."""
    return f"on {target.variant}"


@capability("sleep-l2", on=EVERYWHERE, unknown=NOTES)
@capability("sharded-state", on=EVERYWHERE, unknown=NOTES)
@capability("tensorizer", on=EVERYWHERE, unknown=NOTES)
def reloads_with_some_loaders(target: Target) -> Finding | None:
    """Level 2 needs a loader that can load all weights again."""
    return note("sleep-l2.loaders", observed=f"on {target.variant}")


@capability("sleep-l2.plain-models", on=EVERYWHERE)
def reloads_plain_models(target: Target) -> str | None:
    """Level 2 loses what vLLM computes from the weights while loading, such as quantization scales."""
    return f"on {target.variant}"


@capability("sleep-l2.no-adapters", on=EVERYWHERE)
def reloads_no_adapters(target: Target) -> str | None:
    """Reloading weights after level 2 ends an engine with LoRA adapters."""
    return f"on {target.variant}"


@measure("sleep-l2")
def reads_at(target: Target) -> str | None:
    """Rate of reading weights from files, as measured; nothing is known of this host's disk."""
    if target.path not in WHOLE_CARD:
        return None
    return f"{FROM_DISK} GB/s from a disk and {FROM_CACHE} GB/s from the page cache, as measured"


# --- Several replicas ----------------------------------------------------------------------------------------------

capability("sleep-data-parallel", on=EVERYWHERE, unknown=BLOCKS)(replicas_on_one_gpu)


@capability("sleep-data-parallel", on=EVERYWHERE, unknown=BLOCKS)
def replicas_crash_asleep(target: Target) -> Finding | None:
    """Before vLLM 0.24 sleeping replicas crash, because idle replicas keep computing for busy ones."""
    if target.vllm < VLLM_REPLICAS_SLEEP:
        return unsupported("sleep-data-parallel.crashes", observed=f"vLLM {target.vllm}")
    return note("sleep-data-parallel.pauses-apart", observed=f"vLLM {target.vllm}")
