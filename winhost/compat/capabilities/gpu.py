"""Rules of GPU compute, and of several GPUs for one engine."""

from packaging.version import Version

from winhost.compat import common
from winhost.compat.capability import EVERYWHERE, SHARED, WHOLE_CARD, capability, measure
from winhost.compat.gpu_cards import gpus, listed, named, several
from winhost.compat.rule import Finding, degraded, unsupported, unverified
from winhost.compat.target import Target
from winhost.hardware.gpus import Gpu
from winhost.knowledge.versions import generation

CUDA_13 = Version("13.0")
DRIVER_OF_CUDA_13 = Version("580")  # NVIDIA, CUDA 13.0 release notes, table 3
OLDEST_OF_CUDA_13 = (7, 5)  # compute capability; the same notes: Maxwell, Pascal and Volta are dropped
OLDEST_OF_VLLM, OLDEST_NOW = (7, 0), (7, 5)  # vLLM, Installation, GPU: requirements
VLLM_WITHOUT_VOLTA = Version("0.21.0")  # the oldest of whose documents the new least was seen
WSL_OF_BLACKWELL_GRAPHS = Version("2.7.0")  # vllm-project/vllm #37242
MOST_SEEN_BEHIND_WINDOWS = 2  # microsoft/WSL #12467: more than two cards run out of memory to pin


@capability("gpu-compute.no-card", on=EVERYWHERE)
def no_gpu(target: Target) -> str | None:
    """There is no GPU that can compute."""
    if not target.cards:
        return "no GPU"
    return None


@capability("gpu-compute.no-cuda", on=EVERYWHERE)
def no_cuda(target: Target) -> str | None:
    """None of the GPUs is NVIDIA's, and winhost serves with CUDA."""
    if target.cards and not gpus(target):
        return named(target.cards)
    return None


@capability("gpu-compute.some-without-cuda", on=EVERYWHERE)
def some_without_cuda(target: Target) -> str | None:
    """Besides NVIDIA's there are other GPUs, mostly integrated graphics."""
    idle = [card for card in target.cards if card not in gpus(target)]
    if idle and gpus(target):
        return named(idle)
    return None


@capability("gpu-compute.unlisted", on=EVERYWHERE)
def not_in_the_catalogue(target: Target) -> str | None:
    """Of a GPU that the catalogue does not have, neither its generation nor what runs on it is known."""
    unknown = [card for card in gpus(target) if listed(card) is None]
    return named(unknown) if unknown else None


@capability("gpu-compute.left-by-cuda-13", on=EVERYWHERE)
def cuda_13_left_it(target: Target) -> Finding | None:
    """CUDA 13 dropped Maxwell, Pascal and Volta, so with such a GPU the CUDA version has to be known."""
    old = [card for card in gpus(target) if _older_than_cuda_13(listed(card))]
    if old and target.cuda >= CUDA_13:
        say = unsupported if len(old) == len(gpus(target)) else degraded
        return say("gpu-compute.left-by-cuda-13", observed=f"{named(old)}, CUDA {target.cuda}")
    return None


def _older_than_cuda_13(gpu: Gpu | None) -> bool:
    return bool(gpu and gpu.compute_capability and gpu.compute_capability < OLDEST_OF_CUDA_13)


@capability("gpu-compute.cuda-too-old", on=EVERYWHERE)
def cuda_before_it(target: Target) -> Finding | None:
    """The CUDA version that is stated is older than the first for the GPU's generation."""
    if "cuda" not in target.stated:
        return None  # what winhost installs itself is new enough for all of them
    new = [card for card in gpus(target) if (first := _first_cuda(listed(card))) and target.cuda < first]
    if new:
        say = unsupported if len(new) == len(gpus(target)) else degraded
        return say("gpu-compute.cuda-too-old", observed=f"{named(new)}, CUDA {target.cuda}")
    return None


def _first_cuda(gpu: Gpu | None) -> Version | None:
    found = generation(gpu.architecture) if gpu else None
    return found.cuda if found else None


@capability("gpu-compute.not-in-vllm", on=EVERYWHERE)
def never_built_for_it(target: Target) -> Finding | None:
    """vLLM's own builds begin with compute capability 7.0, so Pascal needs one of somebody else's."""
    old = [card for card in gpus(target) if (gpu := listed(card)) and _capability(gpu) < OLDEST_OF_VLLM]
    if old:
        say = unverified if len(old) == len(gpus(target)) else degraded
        return say("gpu-compute.not-in-vllm", observed=named(old))
    return None


@capability("gpu-compute.left-by-vllm", on=EVERYWHERE)
def vllm_left_volta(target: Target) -> Finding | None:
    """vLLM's documents name compute capability 7.5 as the least from 0.21.0 on."""
    volta = [card for card in gpus(target) if (gpu := listed(card)) and OLDEST_OF_VLLM <= _capability(gpu) < OLDEST_NOW]
    if volta and target.vllm >= VLLM_WITHOUT_VOLTA:
        say = unsupported if len(volta) == len(gpus(target)) else degraded
        return say("gpu-compute.left-by-vllm", observed=f"{named(volta)}, vLLM {target.vllm}")
    return None


def _capability(gpu: Gpu) -> tuple[int, int]:
    return gpu.compute_capability or OLDEST_NOW


@capability("gpu-compute.mig", on=WHOLE_CARD)
def may_be_cut_by_mig(target: Target) -> str | None:
    """The GPU may be split by MIG; the setting persists, and Windows does not show it."""
    cards = [card for card in gpus(target) if (gpu := listed(card)) and gpu.mig]
    if cards:
        return named(cards)
    return None


@capability("gpu-compute.driver-too-old", on=SHARED)
def windows_driver_too_old(target: Target) -> str | None:
    """CUDA 13 needs driver R580, and WSL uses the Windows driver; other paths install their own."""
    if target.driver < DRIVER_OF_CUDA_13 and target.cuda >= CUDA_13:
        return f"driver {target.driver}, CUDA {target.cuda}"
    return None


@capability("gpu-compute.tcc", on=SHARED)
def hidden_by_tcc(target: Target) -> str | None:
    """A GPU is in TCC mode: WSL's VM does not see it, and one such GPU hides all the others."""
    observed = common.tcc_invisible(target.facts)
    return observed if observed else None


@capability("gpu-compute.blackwell-graphs", on=SHARED)
def blackwell_without_graphs(target: Target) -> str | None:
    """On Blackwell, capturing CUDA graphs crashes in WSL before 2.7.0."""
    cards = [card for card in gpus(target) if _is_blackwell(listed(card))]
    if cards and target.wsl < WSL_OF_BLACKWELL_GRAPHS:
        return f"{named(cards)}, WSL {target.wsl}"
    return None


def _is_blackwell(gpu: Gpu | None) -> bool:
    return bool(gpu and gpu.architecture == "Blackwell")


# --- Several -------------------------------------------------------------------------------------------------------


@capability("multi-gpu.one-card", on=EVERYWHERE)
def one_gpu(target: Target) -> str | None:
    """Fewer than two GPUs run CUDA."""
    if not several(target):
        return f"{len(gpus(target))} GPU(s) with CUDA"
    return None


@capability("multi-gpu.behind-windows", on=SHARED)
def several_behind_windows(target: Target) -> str | None:
    """Behind the Windows driver several GPUs exchange data through host memory."""
    if several(target):
        return named(gpus(target))
    return None


@capability("multi-gpu.many-behind-windows", on=SHARED)
def many_behind_windows(target: Target) -> str | None:
    """NCCL's buffers are pinned memory, and more than two GPUs need more of it than WSL can pin."""
    if len(gpus(target)) > MOST_SEEN_BEHIND_WINDOWS:
        return named(gpus(target))
    return None


@capability("multi-gpu.partition", on=("gpu-p",))
def several_partitions(target: Target) -> str | None:
    """Microsoft's pages disagree on whether a VM can have several partitions."""
    if several(target):
        return named(gpus(target))
    return None


@capability("multi-gpu.nccl-generation", on=EVERYWHERE)
def nccl_of_the_generation(target: Target) -> str | None:
    """NCCL has to know the generation; which one an engine brings, no fact tells."""
    firsts = {first for card in several(target) if (first := _first_nccl(listed(card)))}
    if firsts:
        return f"{named(several(target))}: NCCL {max(firsts)} or newer"
    return None


def _first_nccl(gpu: Gpu | None) -> Version | None:
    found = generation(gpu.architecture) if gpu else None
    return found.nccl if found else None


@capability("multi-gpu.unlike", on=EVERYWHERE)
def unlike_gpus(target: Target) -> str | None:
    """The GPUs are of different models; the one with the least memory limits the engine."""
    models = {card.gpu.key["device"].partition("&SUBSYS_")[0].upper() for card in several(target)}
    if len(models) > 1:
        return named(gpus(target))
    return None


@measure("multi-gpu")
def how_many(target: Target) -> str | None:
    """The GPUs, by name."""
    return named(several(target)) or None
