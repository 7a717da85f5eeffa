"""Values of properties as people read them."""

import re
from collections.abc import Callable

from winhost.core.answers import Json
from winhost.model.errors import visible, visible_json
from winhost.model.packed import packed_in_words
from winhost.model.units import MiB, size
from winhost.resources.windows.assignable_device import owner

_KEY = re.compile(r"(?<!\S)([A-Za-z0-9+/]{8})[A-Za-z0-9+/]{48,}([A-Za-z0-9+/]{4}=*)(?!\S)")
_HASH = re.compile(r"(?<![0-9A-Za-z])([0-9a-f]{8})[0-9a-f]{28,}([0-9a-f]{4})(?![0-9A-Za-z])")
_GUID = re.compile(r"(?<!\S)([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?!\S)")

_MOST_HASHES = 3  # in a list


def moment(time: str) -> str:
    """A time of a journal, to the minute."""
    return f"{time[:16].replace('T', ' ')} UTC"


def format_value(value: Json) -> str:
    """A value as people write it: sizes in GiB, words as they are; of a text how long it is, of hashes the ends."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and value >= MiB and value % MiB == 0:
        return size(value)
    if isinstance(value, str) and (vm := owner(value)):
        return f"assigned to VM {vm[:8]}…"
    if isinstance(value, str) and (lines := value.count("\n")):
        return f"{lines} line{'s' if lines > 1 else ''}"
    if isinstance(value, str) and (packed := packed_in_words(value)):
        return packed
    if isinstance(value, list):
        shown = [*map(format_value, value)]
        hashed = len(shown) > _MOST_HASHES and any("…" in each for each in shown)
        return f"{len(shown)} entries" if hashed else ", ".join(shown) or "none"
    if isinstance(value, dict) and all("\n" in str(text) for text in value.values()):
        return f"{len(value)} file{'s' if len(value) > 1 else ''}"
    return "none" if value is None else shortened(visible(str(value)))


def format_full_value(value: Json) -> str:
    """The same with nothing left out but what nobody can read."""
    if isinstance(value, str) and (packed := packed_in_words(value)):
        return packed
    return visible(value) if isinstance(value, str) else visible_json(value)


def format_two(one: Json, other: Json, format_: Callable[[Json], str] = format_value) -> tuple[str, str]:
    """Two values of one property; whole where they differ only in what is left out."""
    texts = format_(one), format_(other)
    return (format_full_value(one), format_full_value(other)) if texts[0] == texts[1] and one != other else texts


def shortened(text: str) -> str:
    """Shorten hashes, GUIDs and public keys in the middle, which nobody reads; --json and files have them whole."""
    return _HASH.sub(r"\1…\2", _KEY.sub(r"\1…\2", _GUID.sub(r"\1…", text)))
