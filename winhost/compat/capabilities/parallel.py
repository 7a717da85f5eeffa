"""How vLLM spreads over GPUs."""

from winhost.compat.capabilities.gpu import MOST_SEEN_BEHIND_WINDOWS
from winhost.compat.capabilities.gpu_cards import gpus, hung, named, several, without_peers
from winhost.compat.capability import EVERYWHERE, NATIVE, SHARED, capability
from winhost.compat.rule import BLOCKS, NOTES, Finding, degraded, note, unsupported, unverified
from winhost.compat.target import Target


@capability("tensor-parallel", on=EVERYWHERE, unknown=BLOCKS)
def layers_on_one_gpu(target: Target) -> Finding | None:
    """There is nothing to split them over."""
    if not several(target):
        return unsupported("tensor-parallel.one-card", observed=f"{len(gpus(target))} card(s) with CUDA")
    return None


@capability("tensor-parallel", on=SHARED, unknown=BLOCKS)
def layers_behind_windows(target: Target) -> Finding | None:
    """Each layer waits for what passes through host memory."""
    if several(target):
        return degraded("tensor-parallel.behind-windows", observed=named(gpus(target)))
    return None


@capability("tensor-parallel", on=SHARED, unknown=BLOCKS)
def layers_over_many_behind_windows(target: Target) -> Finding | None:
    """It is where NCCL runs out of memory to pin."""
    if len(gpus(target)) > MOST_SEEN_BEHIND_WINDOWS:
        return unverified("tensor-parallel.many-behind-windows", observed=named(gpus(target)))
    return None


@capability("tensor-parallel", on=("dda",), unknown=BLOCKS)
def layers_in_a_guest(target: Target) -> Finding | None:
    """Until peers are shown there."""
    if several(target):
        return degraded("tensor-parallel.assigned", observed=named(gpus(target)))
    return None


@capability("tensor-parallel", on=NATIVE, unknown=BLOCKS)
def layers_without_peers(target: Target) -> Finding | None:
    """Cards that reach each other through host memory only."""
    cards = {card.location: card for card in (*without_peers(several(target)), *hung(several(target)))}
    if cards:
        return degraded("tensor-parallel.no-peers", observed=named(cards.values()))
    return None


@capability("tensor-parallel", on=EVERYWHERE, unknown=NOTES)
def odd_number_of_gpus(target: Target) -> Finding | None:
    """Heads of attention come in powers of two, mostly."""
    number = len(several(target))
    if number & (number - 1):
        return note("tensor-parallel.odd-count", observed=f"{number} cards")
    return None


@capability("pipeline-parallel", on=EVERYWHERE, unknown=BLOCKS)
def stages_on_one_gpu(target: Target) -> Finding | None:
    """Each stage takes one."""
    if not several(target):
        return unsupported("pipeline-parallel.one-card", observed=f"{len(gpus(target))} card(s) with CUDA")
    return None


@capability("data-parallel", on=EVERYWHERE, unknown=BLOCKS)
def replicas_on_one_gpu(target: Target) -> Finding | None:
    """Each replica takes one."""
    if not several(target):
        return unsupported("data-parallel.one-card", observed=f"{len(gpus(target))} card(s) with CUDA")
    return None
