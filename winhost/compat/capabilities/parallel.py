"""Rules of vLLM's tensor, pipeline and data parallelism."""

from winhost.compat.capabilities.gpu import MOST_SEEN_BEHIND_WINDOWS
from winhost.compat.capability import EVERYWHERE, NATIVE, SHARED, capability
from winhost.compat.gpu_cards import gpus, hung, named, several, without_peers
from winhost.compat.rule import Finding, finding
from winhost.compat.target import Target


@capability("tensor-parallel.one-card", on=EVERYWHERE)
def layers_on_one_gpu(target: Target) -> str | None:
    """Tensor parallelism needs two GPUs that run CUDA."""
    if not several(target):
        return f"{len(gpus(target))} GPU(s) with CUDA"
    return None


@capability("tensor-parallel.behind-windows", on=SHARED)
def layers_behind_windows(target: Target) -> str | None:
    """Behind the Windows driver each layer's exchange passes through host memory."""
    if several(target):
        return named(gpus(target))
    return None


@capability("tensor-parallel.many-behind-windows", on=SHARED)
def layers_over_many_behind_windows(target: Target) -> str | None:
    """With more than two GPUs NCCL runs out of memory to pin in WSL."""
    if len(gpus(target)) > MOST_SEEN_BEHIND_WINDOWS:
        return named(gpus(target))
    return None


@capability("tensor-parallel.assigned", on=("dda",))
def layers_in_a_guest(target: Target) -> str | None:
    """Until peer-to-peer is shown in a Hyper-V guest, exchanges pass through host memory."""
    if several(target):
        return named(gpus(target))
    return None


@capability("tensor-parallel.no-peers", on=NATIVE)
def layers_without_peers(target: Target) -> str | None:
    """These GPUs have no usable peer-to-peer, so exchanges pass through host memory."""
    cards = {card.location: card for card in (*without_peers(several(target)), *hung(several(target)))}
    if cards:
        return named(cards.values())
    return None


@capability("tensor-parallel.odd-count", on=EVERYWHERE)
def odd_number_of_gpus(target: Target) -> str | None:
    """The number of GPUs is not a power of two, by which few models can be split."""
    number = len(several(target))
    if number & (number - 1):
        return f"{number} GPUs"
    return None


@capability("pipeline-parallel.one-card", on=EVERYWHERE)
def stages_on_one_gpu(target: Target) -> str | None:
    """Pipeline parallelism needs two GPUs that run CUDA."""
    if not several(target):
        return f"{len(gpus(target))} GPU(s) with CUDA"
    return None


@capability("data-parallel.one-card", on=EVERYWHERE)
def replicas_on_one_gpu(target: Target) -> Finding | None:
    """Data parallelism needs a GPU for each replica."""
    if not several(target):
        return finding("data-parallel.one-card", f"{len(gpus(target))} GPU(s) with CUDA")
    return None
