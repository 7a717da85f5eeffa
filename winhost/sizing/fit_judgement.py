"""Judge whether a change helped, and show the arithmetic."""

from collections import defaultdict
from collections.abc import Iterator

from winhost.model.units import gib, gib_range
from winhost.sizing.budget import Budget
from winhost.sizing.memory_places import (
    NOT_KNOWN,
)


def holds_on_gpus(found: Budget, now: Budget) -> bool:
    """Tell whether the GPUs hold it. If the workload is known not to fit now, unknown capacities do not rule
    out a fix.
    """
    gpus = [place.fits for place in found.places if place.card is not None]
    known = now.fits is False
    return found.placement.fits and all(fits if not known else fits is not False for fits in gpus)


def as_good_as(found: Budget, now: Budget) -> bool:
    """Tell whether it fits; unknown is enough if it was known not to fit."""
    return found.fits is True or (now.fits is False and found.fits is None and found.placement.fits)


def not_known(found: Budget) -> Iterator[str]:
    """The missing values and capacities without which a fit is not certain."""
    for lack in found.missing:
        yield f"{lack.model}: {lack.what}" if lack.model else lack.what
    yield from dict.fromkeys(place.how.removesuffix(NOT_KNOWN) for place in found.places if place.capacity is None)


def deciding(found: Budget) -> Iterator[str]:
    """The places where only the lower ends fit, with the line that decides: the one of the widest range."""
    for place in found.places:
        if place.fits is not False:
            continue
        lines = [line for line in found.lines if line.where == place.where]
        widest = max(lines, key=lambda line: line.bytes - line.least)
        of = f"{widest.model}: " if widest.model else ""
        capacity = gib_range(place.capacity or 0, place.most or 0)
        yield (
            f"{place.where}: {gib_range(place.least, place.used)} of {capacity}; "
            f"what decides is {of}{widest.what}, {gib_range(widest.least, widest.bytes)}"
        )


def arithmetic(now: Budget, after: Budget) -> Iterator[str]:
    """The places that were short, as they are after the change, with changed lines; equal GPUs share a line."""
    places_by_text: defaultdict[str, list[str]] = defaultdict(list)
    for where, text in _changes_in_full_places(now, after):
        places_by_text[text].append(where)
    yield from (f"{', '.join(places)}: {text}" for text, places in places_by_text.items())


def _changes_in_full_places(now: Budget, after: Budget) -> Iterator[tuple[str, str]]:
    full = {place.where for place in now.places if place.fits is False}
    before = {(line.where, line.model, line.what): line.bytes for line in now.lines if line.where in full}
    for line in after.lines:
        was = before.get((line.where, line.model, line.what))
        if was is not None and was != line.bytes:
            yield line.where, f"{line.what} {gib(line.bytes)} instead of {gib(was)} ({line.how})"
    for place in after.places:
        if place.where in full and place.capacity is not None:
            yield place.where, f"{gib(place.used)} of {gib(place.capacity)}"
