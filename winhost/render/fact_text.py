"""Format facts for people: the value, or that it is unknown."""

import unicodedata
from collections.abc import Callable, Mapping

from winhost.core.answers import MissingFact, Unavailable
from winhost.model.errors import visible

ORIGINS: Mapping[str, str] = {
    "recorded": "read from the host",
    "imported": "imported from the output of its tools",
    "synthetic": "simulated, no real host",
}

PENDING = "not yet"
"""The text of a fact that does not exist yet."""


def format_fact(read: Callable[[], object]) -> str:
    """Return the fact that `read` returns as text; `not yet` or `unknown` if it raises MissingFact."""
    try:
        return str(read())
    except MissingFact as gap:
        return format_gap(gap)


def format_gap(gap: MissingFact) -> str:
    return PENDING if isinstance(gap.missing, Unavailable) else "unknown"


def percent(part: int, whole: int) -> float:
    """Return the part in percent, as precisely as a drawing needs it."""
    return round(100 * part / whole, 3)


def text_width(text: str) -> int:
    """Return the width of a text in columns. Most East Asian characters take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def truncate(text: str, width: int) -> str:
    """Escape the control characters of a text, and cut it to `width` columns with `…` if it is longer."""
    shown = visible(text)
    if text_width(shown) <= width:
        return shown
    while text_width(shown) >= width:
        shown = shown[:-1]
    return shown.rstrip() + "…"
