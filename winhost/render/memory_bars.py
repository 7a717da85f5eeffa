"""The memory of a workload as bars: what each place must hold, and its capacity."""

from collections.abc import Sequence

from winhost.compat.needs import Fit
from winhost.core.dataclass import dataclass
from winhost.model.units import gib, gib_range
from winhost.render.fact_text import percent
from winhost.sizing.budget import Budget
from winhost.sizing.memories import HOST, HOST_PER_GPUS, PINNED, RAM, SHM, BudgetLine, MemoryUse

_PLACES = {
    RAM: "Memory of the target",
    SHM: "Shared memory (/dev/shm)",
    PINNED: "Memory that may be pinned",
    HOST: "Memory of the machine",
    HOST_PER_GPUS: "Memory of the machine, compared with that of its GPUs",
}


@dataclass(frozen=True)
class Share:
    """A line of a budget as a part of a bar. number: in the legend; left, width: in percent of the bar."""

    number: int
    line: BudgetLine
    bytes: str
    least: str
    left: float
    width: float


@dataclass(frozen=True)
class PlaceBar:
    """The bar of a place. limit: where its capacity ends, in percent of the bar; None where the capacity is unknown."""

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
        """Evidence of its capacity and of its lines."""
        return (*self.evidence, *(key for share in self.shares for key in share.line.evidence))


@dataclass(frozen=True)
class MemoryChart:
    """The bars of a workload on one variant. missing: what the workload file must state; fixes: changes that would make
    it fit."""

    variant: str
    verdict: str
    bars: tuple[PlaceBar, ...]
    homeless: tuple[str, ...]
    missing: tuple[str, ...]
    fixes: tuple[str, ...]


def _verdict(found: Budget | MemoryUse) -> str:
    if found.fits is False:
        return "does not fit" if found.may_fit is False else "may fit"
    return "unknown" if found.fits is None else "fits"


def memory(fit: Fit, gpus: Sequence[str]) -> MemoryChart | None:
    """The chart; None without a workload, or where its memory is unknown. gpus: names of those that run CUDA."""
    found = fit.budget
    if found is None:
        return None
    return MemoryChart(
        variant=fit.variant,
        verdict=_verdict(found),
        bars=tuple(_bar(place, found, gpus) for place in found.memories if place.used or not place.fits),
        homeless=found.placement.homeless,
        missing=tuple(
            f"{lack.model or 'the workload'}: {lack.what}, because {lack.why}; to state: {' or '.join(lack.state)}"
            for lack in found.missing
        ),
        fixes=tuple(fix.text for fix in fit.short.fixes) if fit.short else (),
    )


def _bar(place: MemoryUse, found: Budget, gpus: Sequence[str]) -> PlaceBar:
    lines = [line for line in found.lines if line.where == place.where]
    whole = max(place.used, place.capacity or 0, 1)
    shares, left = [], 0
    for number, line in enumerate(lines, 1):
        shares.append(
            Share(number, line, gib(line.bytes), gib(line.least), percent(left, whole), percent(line.bytes, whole))
        )
        left += line.bytes
    limit = None if place.capacity is None else percent(place.capacity, whole)
    capacity = "unknown" if place.capacity is None else gib(place.capacity)
    return PlaceBar(
        title=_PLACES[place.where] if place.gpu is None else gpus[place.gpu],
        verdict=_verdict(place),
        sum=f"{gib_range(place.least, place.used)} of {capacity}",
        capacity=capacity,
        how=place.how,
        limit=limit,
        shares=tuple(shares),
        evidence=place.evidence,
    )
