"""Facts in words: what was read, or that it was not."""

import unicodedata
from collections.abc import Callable, Mapping

from winhost.model.errors import visible
from winhost.model.facts import MissingFact, Unavailable

ORIGINS: Mapping[str, str] = {
    "recorded": "read from the host",
    "imported": "imported from what its tools printed",
    "synthetic": "simulated, no real host",
}

NOT_YET = "not yet"


def format_fact(tell: Callable[[], object]) -> str:
    """What `tell` reads, as text; `not yet` or `unknown` where that could not be read."""
    try:
        return str(tell())
    except MissingFact as gap:
        return NOT_YET if isinstance(gap.missing, Unavailable) else "unknown"


def columns(text: str) -> int:
    """How wide it is, in letters of Latin text."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def fitted(text: str, room: int) -> str:
    """Shown, and cut to `room` columns with `…` where it is longer."""
    shown = visible(text)
    if columns(shown) <= room:
        return shown
    while columns(shown) >= room:
        shown = shown[:-1]
    return shown.rstrip() + "…"
