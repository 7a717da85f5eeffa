"""Facts in words: what was read, or that it was not."""

import unicodedata
from collections.abc import Callable, Mapping

from winhost.core.answers import MissingFact, Unavailable
from winhost.model.errors import visible

ORIGINS: Mapping[str, str] = {
    "recorded": "read from the host",
    "imported": "imported from what its tools printed",
    "synthetic": "simulated, no real host",
}

NOT_YET = "not yet"


def format_fact(read: Callable[[], object]) -> str:
    """Format what `read` returns; `not yet` or `unknown` where it could not be read."""
    try:
        return str(read())
    except MissingFact as gap:
        return format_gap(gap)


def format_gap(gap: MissingFact) -> str:
    return NOT_YET if isinstance(gap.missing, Unavailable) else "unknown"


def percent(part: int, whole: int) -> float:
    """The part in percent, as precisely as a drawing needs it."""
    return round(100 * part / whole, 3)


def columns(text: str) -> int:
    """The width of a text in columns; most East Asian characters take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def fitted(text: str, width: int) -> str:
    """The text with escapes for control characters, cut to `width` columns with `…` where it is longer."""
    text_shown = visible(text)
    if columns(text_shown) <= width:
        return text_shown
    while columns(text_shown) >= width:
        text_shown = text_shown[:-1]
    return text_shown.rstrip() + "…"
