"""Draw the memory of a workload as bars: the content of each memory, and its capacity."""

from collections.abc import Sequence

from winhost.compat.needs import Fit
from winhost.core.dataclass import dataclass
from winhost.model.units import gib, gib_range
from winhost.render.fact_text import percent
from winhost.sizing.budget import Budget
from winhost.sizing.memories import HOST, HOST_PER_GPUS, PINNED, RAM, SHM, BudgetLine, MemoryUse

_TITLES = {
    RAM: "Memory of the target",
    SHM: "Shared memory (/dev/shm)",
    PINNED: "Memory that may be pinned",
    HOST: "Memory of the machine",
    HOST_PER_GPUS: "Memory of the machine, compared with that of its GPUs",
}


@dataclass(frozen=True)
class Share:
    """A line of a budget as a part of a bar. number: its number in the legend; left, width: in percent of the bar."""

    number: int
    line: BudgetLine
    bytes: str
    least: str
    left: float
    width: float


@dataclass(frozen=True)
class MemoryBar:
    """The bar of a memory. limit: its capacity in percent of the bar, None if unknown."""

    title: str
    verdict: str
    sum: str
    capacity: str
    how: str
    limit: float | None
    shares: tuple[Share, ...]
    evidence: tuple[str, ...]

    @property
    def cited(self) -> tuple[str, ...]:
        """The evidence of its capacity and of its lines."""
        return (*self.evidence, *(key for share in self.shares for key in share.line.evidence))


@dataclass(frozen=True)
class MemoryChart:
    """The bars of a workload on one variant. unplaced: models for which there are not enough GPUs; missing: values that
    the workload file must state; fixes: changes that would make it fit.
    """

    variant: str
    verdict: str
    bars: tuple[MemoryBar, ...]
    unplaced: tuple[str, ...]
    missing: tuple[str, ...]
    fixes: tuple[str, ...]


def _format_verdict(found: Budget | MemoryUse) -> str:
    if found.fits is False:
        return "does not fit" if found.may_fit is False else "may fit"
    return "unknown" if found.fits is None else "fits"


def make_memory_chart(fit: Fit, gpus: Sequence[str]) -> MemoryChart | None:
    """Make the chart; None without a workload, or if its memory is unknown. gpus: names of the GPUs that run CUDA."""
    budget = fit.budget
    if budget is None:
        return None
    return MemoryChart(
        variant=fit.variant,
        verdict=_format_verdict(budget),
        bars=tuple(_make_bar(memory, budget, gpus) for memory in budget.memories if memory.used or not memory.fits),
        unplaced=budget.placement.homeless,
        missing=tuple(
            f"{gap.model or 'the workload'}: {gap.what}, because {gap.why}; to state: {' or '.join(gap.state)}"
            for gap in budget.missing
        ),
        fixes=tuple(fix.text for fix in fit.short.fixes) if fit.short else (),
    )


def _make_bar(memory: MemoryUse, budget: Budget, gpus: Sequence[str]) -> MemoryBar:
    lines = [line for line in budget.lines if line.where == memory.where]
    bar_size = max(memory.used, memory.capacity or 0, 1)
    shares, left = [], 0
    for number, line in enumerate(lines, 1):
        shares.append(
            Share(
                number, line, gib(line.bytes), gib(line.least), percent(left, bar_size), percent(line.bytes, bar_size)
            )
        )
        left += line.bytes
    limit = None if memory.capacity is None else percent(memory.capacity, bar_size)
    capacity = "unknown" if memory.capacity is None else gib(memory.capacity)
    return MemoryBar(
        title=_TITLES[memory.where] if memory.gpu is None else gpus[memory.gpu],
        verdict=_format_verdict(memory),
        sum=f"{gib_range(memory.least, memory.used)} of {capacity}",
        capacity=capacity,
        how=memory.how,
        limit=limit,
        shares=tuple(shares),
        evidence=memory.evidence,
    )
