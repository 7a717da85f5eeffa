"""What each way offers: a row for each capability, a cell for each way, and behind them the reasons."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from winhost.compat import catalogue
from winhost.compat.needs import Needs
from winhost.model.capabilities import CAPABILITIES
from winhost.model.path import WAYS, path_of
from winhost.model.reason import CapabilityVerdict, PathVerdict, Reason, Verdict

K = TypeVar("K", bound=Hashable)
Offered: TypeAlias = Sequence[tuple[str, CapabilityVerdict]]


@dataclass(frozen=True)
class Cell:
    """A capability on a way. moot: the way itself is unsupported, so nothing it would offer is to be had."""

    way: str
    verdict: Verdict
    moot: bool


@dataclass(frozen=True)
class VariantGroup:
    """Ways with the same verdict, and as much of the capability."""

    ways: tuple[str, ...]
    verdict: Verdict
    measure: str | None


@dataclass(frozen=True)
class ObservedReason:
    """A reason, and the ways of which it is said. observed: nothing where that is only the way."""

    ways: tuple[str, ...]
    reason: Reason
    observed: str


@dataclass(frozen=True)
class Ground:
    """Evidence that it works, and the ways of which that holds."""

    ways: tuple[str, ...]
    key: str


@dataclass(frozen=True)
class MatrixRow:
    """wanted: must, nice, or nothing."""

    capability: str
    title: str
    means: str
    wanted: str
    cells: tuple[Cell, ...]
    groups: tuple[VariantGroup, ...]
    told: tuple[ObservedReason, ...]
    grounds: tuple[Ground, ...]


def matrix(ways: Sequence[PathVerdict], needs: Needs) -> tuple[MatrixRow, ...]:
    """What is wanted first, else in the order of the catalogue."""
    rows = [_row(name, ways, needs) for name in CAPABILITIES]
    return tuple(sorted(rows, key=lambda row: ("must", "nice", "").index(row.wanted)))


def _row(name: str, ways: Sequence[PathVerdict], needs: Needs) -> MatrixRow:
    """Behind the cells stand the reasons of ways that can be had at all."""
    offered = [(way.path, way.offers(name)) for way in ways if way.verdict is not Verdict.UNSUPPORTED]
    topic = catalogue.topics()[name]
    return MatrixRow(
        capability=name,
        title=topic.title,
        means=topic.means,
        wanted="must" if name in needs.must else "nice" if name in needs.nice else "",
        cells=tuple(Cell(way.path, way.offers(name).verdict, way.verdict is Verdict.UNSUPPORTED) for way in ways),
        groups=_groups(offered),
        told=_told(offered),
        grounds=_grounds(offered),
    )


def named(ways: Sequence[str]) -> str:
    """Ways for people; a path stands for all of its variants."""
    whole = {path for path in map(path_of, ways) if {way for way in WAYS if path_of(way) == path} <= set(ways)}
    return ", ".join(dict.fromkeys(path_of(way) if path_of(way) in whole else way for way in ways))


def _groups(offered: Offered) -> tuple[VariantGroup, ...]:
    """Each at the place of its first way."""
    found = _ways_by((way, (offer.verdict, offer.measure)) for way, offer in offered)
    return tuple(VariantGroup(ways, verdict, measure) for (verdict, measure), ways in found.items())


def _told(offered: Offered) -> tuple[ObservedReason, ...]:
    """The heaviest first."""
    every = [(way, reason) for way, offer in offered for reason in offer.reasons]
    found = _ways_by((way, (reason.code, reason.severity, _observed(reason, way))) for way, reason in every)
    firsts = {(reason.code, reason.severity, _observed(reason, way)): reason for way, reason in reversed(every)}
    told = [ObservedReason(ways, firsts[key], key[2]) for key, ways in found.items()]
    return tuple(sorted(told, key=lambda each: -each.reason.severity.rank))


def _observed(reason: Reason, way: str) -> str:
    return "" if reason.observed in (f"on {way}", f"on {path_of(way)}") else reason.observed


def _grounds(offered: Offered) -> tuple[Ground, ...]:
    found = _ways_by((way, key) for way, offer in offered for key in offer.grounds)
    return tuple(Ground(ways, key) for key, ways in found.items())


def _ways_by(said: Iterable[tuple[str, K]]) -> dict[K, tuple[str, ...]]:
    """The ways of which each thing is said."""
    ways: dict[K, tuple[str, ...]] = {}
    for way, thing in said:
        ways[thing] = (*ways.get(thing, ()), way)
    return ways
