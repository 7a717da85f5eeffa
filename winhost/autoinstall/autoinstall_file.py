"""An autoinstall file as Ubuntu's installer reads it, with the place of everything in it."""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import yaml

from winhost.core.dataclass import dataclass

Loc = tuple[str | int, ...]
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MOST_VALUES = 20_000
_DEEPEST = 40


class Delivery(StrEnum):
    """What the file is: one for the root of the medium, the same below a key of its own, or a cloud-config."""

    PLAIN = "plain"
    WRAPPED = "wrapped"
    CLOUD_CONFIG = "cloud-config"


class Unreadable(Exception):
    """Why it is no YAML, and where."""

    def __init__(self, why: str, place: tuple[int, int]) -> None:
        super().__init__(why)
        self.why, self.place = why, place


@dataclass(frozen=True)
class AutoinstallFile:
    """whole: all of it; section: what the installer takes; at: where that stands in the whole."""

    whole: Mapping[str, Any]
    section: Mapping[str, Any]
    at: Loc
    delivery: Delivery
    places: Mapping[Loc, tuple[int, int]]
    twice: Sequence[Loc]

    def place(self, loc: Loc) -> tuple[int, int]:
        """Line and column of this place in the section, or of the nearest that is written around it; from 1."""
        full = (*self.at, *loc)
        return next((self.places[full[:end]] for end in range(len(full), 0, -1) if full[:end] in self.places), (1, 1))


def parsed_autoinstall(text: str) -> AutoinstallFile:
    """Raises Unreadable."""
    try:
        node = yaml.compose(text, _PARSER)
        places: dict[Loc, tuple[int, int]] = {}
        twice: list[Loc] = []
        for loc, mark in _walk(node):
            if loc in places:
                twice.append(loc)
            places[loc] = (mark.line + 1, mark.column + 1)  # the last one counts
            if len(places) > _MOST_VALUES:
                raise Unreadable(f"it has more than {_MOST_VALUES:,} values", (1, 1))
        whole = yaml.load(text, _PARSER)  # noqa: S506 - the safe one, in C
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Unreadable(str(error.problem or error.context), _at(mark)) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}"[:200], (1, 1)) from None
    return _with_section(whole, places, twice, text.startswith("#cloud-config"))


def _at(mark: Any) -> tuple[int, int]:
    return (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)


def _walk(node: Any, loc: Loc = ()) -> Iterator[tuple[Loc, Any]]:
    """Every key and item with its mark; aliases are walked where they stand, so the number of values is bounded."""
    if len(loc) > _DEEPEST:
        raise Unreadable(f"it is nested more than {_DEEPEST} deep", _at(node.start_mark))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*loc, str(key.value))
            yield here, key.start_mark
            yield from _walk(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield (*loc, index), item.start_mark
            yield from _walk(item, (*loc, index))


def _with_section(
    whole: Any, places: Mapping[Loc, tuple[int, int]], twice: Sequence[Loc], is_cloud_config: bool
) -> AutoinstallFile:
    if not isinstance(whole, dict):
        raise Unreadable("it is not a mapping of keys to values", (1, 1))
    inner = whole.get("autoinstall")
    wrapped = "autoinstall" in whole
    delivery = Delivery.CLOUD_CONFIG if is_cloud_config else Delivery.WRAPPED if wrapped else Delivery.PLAIN
    at: Loc = ("autoinstall",) if wrapped else ()
    taken = inner if wrapped else {} if is_cloud_config else whole
    section = taken if isinstance(taken, dict) else {}
    return AutoinstallFile(whole, section, at, delivery, places, twice)
