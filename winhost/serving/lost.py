"""The losses of a model without sleep mode: it is stopped and started instead of put to sleep and woken."""

from dataclasses import replace

from winhost.compat.capabilities.amounts import FROM_DISK
from winhost.compat.swap import STARTS, slowest
from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes
from winhost.model.workload import Model, Workload
from winhost.sizing.budget import Budget
from winhost.sizing.engines import MemoryPart, weights

READ_SPEED = round(FROM_DISK * 1000)  # MB/s
EVIDENCE = ("copies-measured", "vllm-sleep-measured", "vllm-start-measured")


@dataclass(frozen=True)
class Lost:
    """Seconds; None where the size of the weights is not known.

    waking: fastest and slowest, as measured; reading: all weights from files at read_speed MB/s; starting: of a whole
    start, as measured; least: the shortest possible start; within: what the workload allows; kept: whether the start is
    in time, None where no limit is set.
    """

    weights: Bytes | None
    waking: tuple[float, float] | None
    read_speed: int
    reading: float | None
    starting: tuple[float, float]
    least: float
    within: int | None
    kept: bool | None
    evidence: tuple[str, ...] = EVIDENCE


def lost(model: Model, workload: Workload, budget: Budget, read_speed: int) -> Lost:
    """read_speed: of the disk that the weights are on, MB/s."""
    asleep = replace(model, chosen_level=model.level or 1)
    share, swap = weights(model), slowest(replace(workload, models=(asleep,)), budget)
    whole = share.bytes * model.gpus if isinstance(share, MemoryPart) else None
    reading = None if whole is None else whole / (read_speed * 10**6)
    least, within = max(reading or 0, STARTS[0]), workload.availability.swap_within
    return Lost(
        weights=whole,
        waking=(swap.best, swap.worst) if swap else None,
        read_speed=read_speed,
        reading=reading,
        starting=STARTS,
        least=least,
        within=within,
        kept=None if within is None else least <= within,
    )
