"""The options and variables of each version of vLLM in the tables, and changes of their defaults."""

from bisect import bisect_right
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Literal

from packaging.version import Version

from winhost.core.dataclass import dataclass
from winhost.model.catalogue_file import load_catalogue
from winhost.model.once import once

Kind = Literal["engine", "env"]
_SECTIONS: Mapping[Kind, str] = {"engine": "options", "env": "variables"}


@dataclass(frozen=True)
class _Table:
    """versions: in order; known: for each name the indexes of the versions that have it; defaults: for each name its
    defaults, each with the version from which on it applies.
    """

    versions: tuple[Version, ...]
    known: Mapping[Kind, Mapping[str, frozenset[int]]]
    defaults: Mapping[str, tuple[tuple[Version, object], ...]]


@once
def _table() -> _Table:
    read: dict[str, Any] = load_catalogue(files("winhost.knowledge").joinpath("vllm_options.yaml"))
    known: dict[Kind, dict[str, frozenset[int]]] = {"engine": {}, "env": {}}
    for kind, section in _SECTIONS.items():
        for ranges, names in read[section].items():
            ends = [tuple(map(int, each.split("-"))) for each in ranges.split()]
            known[kind].update(dict.fromkeys(names.split(), frozenset(i for a, b in ends for i in range(a, b + 1))))
    defaults = {
        name: tuple((Version(since), value) for since, value in values.items())
        for name, values in read["defaults"].items()
    }
    return _Table(tuple(map(Version, read["versions"])), known, defaults)


def seen_versions() -> tuple[Version, ...]:
    """Return the versions in the tables, in order."""
    return _table().versions


def knows(kind: Kind, name: str, version: Version) -> bool | None:
    """Tell whether a version has an option or variable; None for a version before the first in the tables, or between
    two that differ. A version after the last counts as the last.
    """
    table = _table()
    having = table.known[kind].get(name, frozenset())
    next_ = bisect_right(table.versions, version)
    if next_ == 0:
        return None
    previous = next_ - 1
    same = (previous in having) is (next_ in having)
    if table.versions[previous] == version or next_ == len(table.versions) or same:
        return previous in having
    return None


def changed_default(name: str, version: Version) -> str | None:
    """Say what vLLM's own default is in this version, and what it was before or is later; None if all versions have the
    same default.
    """
    steps = _table().defaults.get(name)
    if steps is None:
        return None
    now = max((i for i, (since, _) in enumerate(steps) if since <= version), default=0)
    since, value = steps[now]
    before = f", {_format(steps[now - 1][1])} before" if now else ""
    after = f", {_format(steps[now + 1][1])} from {steps[now + 1][0]} on" if now + 1 < len(steps) else ""
    return f"vLLM's own default here is {_format(value)}{f' since {since}' if now else ''}{before or after}"


def _format(value: object) -> str:
    return "decided at the start" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def names(kind: Kind) -> Mapping[str, frozenset[int]]:
    """Return all names that any version has, with the indexes of those versions."""
    return _table().known[kind]


def versions_with(kind: Kind, name: str) -> tuple[Version, ...]:
    """Return the versions in the tables that have it, in order."""
    table = _table()
    return tuple(table.versions[index] for index in sorted(table.known[kind].get(name, ())))
