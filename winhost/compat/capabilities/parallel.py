"""Rules of vLLM's tensor, pipeline and data parallelism."""

from winhost.compat.capabilities.gpu import MOST_SEEN_BEHIND_WINDOWS
from winhost.compat.capability import EVERYWHERE, NATIVE, SHARED, capability
from winhost.compat.gpu_cards import gpus, hung, named, several, without_peers
from winhost.compat.rule import BLOCKS, NOTES, Finding, degraded, note, unsupported, unverified
from winhost.compat.target import Target


@capability("tensor-parallel", on=EVERYWHERE, unknown=BLOCKS)
def layers_on_one_gpu(target: Target) -> Finding | None:
    """Tensor parallelism needs two GPUs that run CUDA."""
    if not several(target):
        return unsupported("tensor-parallel.one-card", observed=f"{len(gpus(target))} GPU(s) with CUDA")
    return None


@capability("tensor-parallel", on=SHARED, unknown=BLOCKS)
def layers_behind_windows(target: Target) -> Finding | None:
    """Behind the Windows driver each layer's exchange passes through host memory."""
    if several(target):
        return degraded("tensor-parallel.behind-windows", observed=named(gpus(target)))
    return None


@capability("tensor-parallel", on=SHARED, unknown=BLOCKS)
def layers_over_many_behind_windows(target: Target) -> Finding | None:
    """With more than two GPUs NCCL runs out of memory to pin in WSL."""
    if len(gpus(target)) > MOST_SEEN_BEHIND_WINDOWS:
        return unverified("tensor-parallel.many-behind-windows", observed=named(gpus(target)))
    return None


@capability("tensor-parallel", on=("dda",), unknown=BLOCKS)
def layers_in_a_guest(target: Target) -> Finding | None:
    """Until peer-to-peer is shown in a Hyper-V guest, exchanges pass through host memory."""
    if several(target):
        return degraded("tensor-parallel.assigned", observed=named(gpus(target)))
    return None


@capability("tensor-parallel", on=NATIVE, unknown=BLOCKS)
def layers_without_peers(target: Target) -> Finding | None:
    """These GPUs have no usable peer-to-peer, so exchanges pass through host memory."""
    cards = {card.location: card for card in (*without_peers(several(target)), *hung(several(target)))}
    if cards:
        return degraded("tensor-parallel.no-peers", observed=named(cards.values()))
    return None


@capability("tensor-parallel", on=EVERYWHERE, unknown=NOTES)
def odd_number_of_gpus(target: Target) -> Finding | None:
    """The number of GPUs is not a power of two, by which few models can be split."""
    number = len(several(target))
    if number & (number - 1):
        return note("tensor-parallel.odd-count", observed=f"{number} GPUs")
    return None


@capability("pipeline-parallel", on=EVERYWHERE, unknown=BLOCKS)
def stages_on_one_gpu(target: Target) -> Finding | None:
    """Pipeline parallelism needs two GPUs that run CUDA."""
    if not several(target):
        return unsupported("pipeline-parallel.one-card", observed=f"{len(gpus(target))} GPU(s) with CUDA")
    return None


@capability("data-parallel", on=EVERYWHERE, unknown=BLOCKS)
def replicas_on_one_gpu(target: Target) -> Finding | None:
    """Data parallelism needs a GPU for each replica."""
    if not several(target):
        return unsupported("data-parallel.one-card", observed=f"{len(gpus(target))} GPU(s) with CUDA")
    return None
