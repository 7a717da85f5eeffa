"""Two ways of doing a thing, timed turn about in one run: what slows the machine down slows both."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from timeit import timeit
from typing import Any


class NotHere(Exception):
    """Why something cannot be measured on this machine."""


@dataclass(frozen=True)
class Case:
    """`work` is held against `yardstick`. A turn is so many `calls` of one; `aim` is the ratio we want at most.

    With `told`, what both return is their cost; else it is the time that they take.
    """

    what: str
    against: str
    work: Callable[[], Any]
    yardstick: Callable[[], Any]
    aim: float | None = None
    calls: int = 1
    told: bool = False


@dataclass(frozen=True)
class Ratio:
    """The ratio of the work to the yardstick: over all rounds the middle one, the smallest, the largest."""

    middle: float
    least: float
    most: float


def measure(case: Case, rounds: int) -> Ratio:
    """A round is one turn of each. The first of all does not count: it fills the caches."""
    pairs = [_round(case) for _ in range(rounds + 1)][1:]
    ratios = [work / yardstick for work, yardstick in pairs]
    return Ratio(median(ratios), min(ratios), max(ratios))


def _round(case: Case) -> tuple[float, float]:
    if case.told:
        return case.work(), case.yardstick()
    return timeit(case.work, number=case.calls), timeit(case.yardstick, number=case.calls)
