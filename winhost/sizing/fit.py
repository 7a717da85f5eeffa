"""Find what makes a workload fit: how much memory is missing where, and the nearest changes, each of them tried.

A fix is one change of the workload or of the GPUs, together with the host memory that it then takes. Only fixes that
were computed to fit are returned, and none that contains another. Unknown values do not rule a fix out: they are
listed with it.

The smallest change comes first: settings that cost nothing, then a workload that is a little smaller, then spread,
asleep, much smaller or moved away. Other weights are advice, for they may answer differently; what has to be bought is
last.
"""

from winhost.core.dataclass import dataclass
from winhost.model.path import AvailableMemory
from winhost.model.units import Bytes
from winhost.model.workload import (
    Workload,
)
from winhost.sizing.budget import budget
from winhost.sizing.engines import Missing
from winhost.sizing.fit_fixes import ADVICE, Fix
from winhost.sizing.fit_search import FixSearch


@dataclass(frozen=True)
class Shortage:
    """The bytes that a memory lacks. at_least: even if everything takes its least."""

    where: str
    bytes: Bytes
    at_least: Bytes


@dataclass(frozen=True)
class WhatWouldFit:
    """Why a workload does not fit, and what would.

    homeless: models that need more GPUs than there are; missing: values that were not stated, counted as zero; fixes:
    the smallest change first; nearest: the first that takes neither other weights nor a purchase.
    """

    short: tuple[Shortage, ...]
    homeless: tuple[str, ...]
    missing: tuple[Missing, ...]
    fixes: tuple[Fix, ...]
    nearest: Fix | None


def what_would_fit(workload: Workload, available_memory: AvailableMemory) -> WhatWouldFit:
    """Shortages and the fixes found; none of either where the workload fits."""
    now = budget(workload, available_memory)
    short = tuple(
        Shortage(place.where, place.used - place.capacity, max(0, place.least - place.capacity))
        for place in now.places
        if place.capacity is not None and place.used > place.capacity
    )
    nothing_known_against_it = now.fits is None and now.missing
    fixes = () if now.fits or nothing_known_against_it else FixSearch(workload, available_memory, now).fixes()
    nearest = fixes[0] if fixes and fixes[0].tier < ADVICE else None
    return WhatWouldFit(short, now.placement.homeless, now.missing, fixes, nearest)
