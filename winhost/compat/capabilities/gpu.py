"""The GPUs of a target: how many, how much memory, and how they reach each other."""

from winhost.compat.capability import EVERYWHERE, SHARED, capability, measure
from winhost.compat.rule import BLOCKS, NOTES, Finding, unsupported
from winhost.compat.target import Target
from winhost.model.units import size


@capability("nvlink", on=SHARED, unknown=BLOCKS)
def nvlink_is_hidden(target: Target) -> Finding | None:
    """Windows' driver shows guests no links."""
    return unsupported("nvlink.behind-windows", observed=f"on {target.path}")


@capability("gpu-compute", on=EVERYWHERE, unknown=NOTES)
def no_gpu(target: Target) -> Finding | None:
    """There is nothing to compute on."""
    if not target.cards:
        return unsupported("gpu-compute.no-card", observed="no GPU")
    return None


@measure("gpu-memory")
def memory(target: Target) -> str | None:
    """Of all cards that tell it."""
    each = [card.gpu.state.vram for card in target.cards]
    return f"{size(sum(vram or 0 for vram in each))} on {len(each)} card(s)" if each and all(each) else None
