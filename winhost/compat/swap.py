"""Calculates from measured copy rates how long a sleeping model takes to answer. Pure.

The bounds are far apart: the lower one is the copies alone at the fastest rates measured, the upper one everything that
an engine does, at the slowest rates reported.
"""

from collections.abc import Iterator
from fractions import Fraction

from winhost.compat.capabilities.amounts import (
    CACHE_RATE,
    DISK_RATE,
    GB,
    PAGEABLE_RATE,
    PAGEABLE_RATE_DOWN,
    PINNED_RATE,
    PINNED_RATE_DOWN,
)
from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes, GiB
from winhost.model.workload import Model, Workload
from winhost.sizing.budget import Budget
from winhost.sizing.engines import MemoryPart, engine, weights
from winhost.sizing.memories import SHARED_WITH_WINDOWS

# 8.19e9 parameters in 16 bits on an A100, from pinned memory and from disk: the evidence `vllm-sleep-measured`.
REPORTED_GB = 2 * 8.19e9 / GB
REPORTED_UP, REPORTED_DOWN = REPORTED_GB / 2.2, REPORTED_GB / 10.6
# 14.29 GiB on an H200: the evidence `sleep-backup-stays`, whose first sleep pins, and `sleep-backup-returned`.
MEASURED_GB = 14.29 * GiB / GB
FIRST_DOWN = MEASURED_GB / 13.8
UNPINNED_UP, UNPINNED_DOWN = MEASURED_GB / 2.59, MEASURED_GB / 9.6
START_SECONDS = (29.0, 91.5)  # seconds until the first answer of a start: the quickest reported, the slowest measured
STOP_SECONDS = (0.6, 6.0)
IMAGE_START_SECONDS, IMAGE_WEIGHTS_GIB = (
    (5.9, 10.9),
    3.26,
)  # seconds until its first answer from an image on disk, and its weights
DROP_SECONDS = 0.3  # seconds until level 2 has dropped weights


@dataclass(frozen=True)
class Rates:
    """GB/s of each GPU to its host memory (down) and back (up), at best and as slow as reported."""

    up: float
    down: float
    up_reported: float
    down_reported: float


PINNED_RATES = Rates(PINNED_RATE, PINNED_RATE_DOWN, REPORTED_UP, FIRST_DOWN)
# At best as measured on a fast machine; at worst slower by the same factor that was reported of pinned memory.
PAGEABLE_RATES = Rates(
    UNPINNED_UP,
    UNPINNED_DOWN,
    REPORTED_UP * PAGEABLE_RATE / PINNED_RATE,
    REPORTED_DOWN * PAGEABLE_RATE_DOWN / PINNED_RATE_DOWN,
)


@dataclass(frozen=True)
class Swap:
    """Seconds until `model` answers, at best and worst, if `after` falls asleep first; None: no model has to."""

    model: str
    after: str | None
    best: float
    worst: float

    def __str__(self) -> str:
        turn = f" once {self.after} sleeps" if self.after else ""
        return f"{self.model} answers{turn} after {self.best:.1f} to {self.worst:.1f} s"


def swaps(workload: Workload, budget: Budget) -> Iterator[Swap]:
    """Yield the swaps of each sleeping model of known size: with no other model awake, and after each one that shares a
    GPU.
    """
    rates = PAGEABLE_RATES if budget.variant.startswith(SHARED_WITH_WINDOWS) else PINNED_RATES
    sleepers = [model for model in workload.models if model.sleeps and _weights_to_copy(model) is not None]
    for model in sleepers:
        best, worst = _wake_seconds(model, rates)
        yield Swap(model.name, None, best, worst)
        for other in sleepers:
            if other is not model and _share_a_gpu(budget, model, other):
                first, last = _sleep_seconds(other, rates)
                yield Swap(model.name, other.name, best + first, worst + last)


def slowest(workload: Workload, budget: Budget) -> Swap | None:
    """Return the swap whose lower bound is highest; None where no model of known size sleeps."""
    return max(swaps(workload, budget), key=lambda swap: (swap.best, swap.worst), default=None)


def _share_a_gpu(budget: Budget, one: Model, other: Model) -> bool:
    gpus = budget.placement.gpus
    return not set(gpus.get(one.name, ())).isdisjoint(gpus.get(other.name, ()))


def _weights_to_copy(model: Model) -> Bytes | None:
    """Return the bytes of weights on the GPU that has most of them; for level 1 those of their backup in host memory,
    if only that is known.
    """
    share = weights(model)
    if isinstance(share, MemoryPart):
        return share.bytes
    backup = engine(model).backup
    return backup.bytes // model.gpus if backup else None


def _wake_seconds(model: Model, rates: Rates) -> tuple[float, float]:
    if model.level == 0:
        return START_SECONDS
    size = float(Fraction(_weights_to_copy(model) or 0, GB))
    if model.level == 1:
        return size / rates.up, size / rates.up_reported
    whole = size * model.engine_gpus
    return whole / CACHE_RATE, whole / DISK_RATE


def _sleep_seconds(model: Model, rates: Rates) -> tuple[float, float]:
    if model.level == 0:
        return STOP_SECONDS
    size = float(Fraction(_weights_to_copy(model) or 0, GB))
    return (size / rates.down, size / rates.down_reported) if model.level == 1 else (0.0, DROP_SECONDS)
