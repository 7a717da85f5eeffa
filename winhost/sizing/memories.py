"""The memories of a workload: what is counted in each, and whether it fits there."""

from collections.abc import Iterable, Sequence

from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes
from winhost.sizing.engines import MemoryPart

RAM = "ram"
SHM = "shm"
PINNED = "pinned"
HOST = "host"
HOST_PER_GPUS = "host-per-gpus"
NOT_KNOWN = ", not known"  # the end of `how` for an unknown capacity
SHARED_WITH_WINDOWS = ("wsl2", "wslc")
ALONGSIDE_WINDOWS = (*SHARED_WITH_WINDOWS, "dda", "gpu-p")


@dataclass(frozen=True)
class BudgetLine:
    """A part of what one memory holds. bytes: what is counted; least: the least it may be; how: the computation."""

    what: str
    where: str
    bytes: Bytes
    least: Bytes
    how: str
    evidence: tuple[str, ...]
    estimate: bool
    model: str | None = None


@dataclass(frozen=True)
class MemoryUse:
    """One memory: `gpu0`, `ram`, `shm`, `pinned`, `host`, or `host-per-gpus`; sizes in bytes.

    how: the computation of the capacity, of which most is the upper end. fits: whether the upper end of all lines fits,
    None where that is unknown; may_fit: whether their lower end fits into the upper end of the capacity.
    """

    where: str
    gpu: int | None
    capacity: Bytes | None
    most: Bytes | None
    how: str
    evidence: tuple[str, ...]
    used: Bytes
    least: Bytes
    margin: Bytes | None
    fits: bool | None
    may_fit: bool | None


def line_of(part: MemoryPart, where: str, model: str | None = None) -> BudgetLine:
    return BudgetLine(part.what, where, part.bytes, part.least, part.how, part.evidence, part.estimate, model)


@dataclass(frozen=True)
class Capacity:
    """bytes: what is safe to count on; most: at best. None: not known."""

    bytes: Bytes | None
    how: str
    evidence: tuple[str, ...]
    most: Bytes | None = None


def capacity_of(size: Bytes | None, how: str, *evidence: str) -> Capacity:
    return Capacity(size, how if size is not None else how + NOT_KNOWN, evidence, size)


def memory_use(
    lines: Sequence[BudgetLine],
    where: str,
    capacity: Capacity,
    gpu: int | None = None,
    *,
    doubts: bool,
    unproven: bool = False,
) -> MemoryUse:
    """doubts: a size that it would hold is missing; unproven: what does not fit here might fit on another GPU."""
    least, used = ends(line for line in lines if line.where == where)
    fits, may_fit = _fits(used, capacity.bytes, doubts), _fits(least, capacity.most, doubts)
    return MemoryUse(
        where=where,
        gpu=gpu,
        capacity=capacity.bytes,
        most=capacity.most,
        how=capacity.how,
        evidence=capacity.evidence,
        used=used,
        least=least,
        margin=None if capacity.bytes is None else capacity.bytes - used,
        fits=None if unproven and fits is False else fits,
        may_fit=None if unproven and may_fit is False else may_fit,
    )


def _fits(needed: Bytes, capacity: Bytes | None, doubts: bool) -> bool | None:
    if capacity is None:
        return None
    if needed > capacity:
        return False
    return None if doubts else True


def ends(parts: Iterable[MemoryPart | BudgetLine]) -> tuple[Bytes, Bytes]:
    """The sums of the lower and of the upper ends."""
    found = list(parts)
    return sum(part.least for part in found), sum(part.bytes for part in found)
