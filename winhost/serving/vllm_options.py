"""The options and variables of each version of vLLM that was read, and changes of their defaults."""

from bisect import bisect_right
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Literal

from packaging.version import Version

from winhost.core.dataclass import dataclass
from winhost.model.catalogue_file import load_catalogue
from winhost.model.once import once

Kind = Literal["engine", "env"]
_WHERE: Mapping[Kind, str] = {"engine": "options", "env": "variables"}


@dataclass(frozen=True)
class _Table:
    """versions: in order; known: by name the positions of the versions that have it; defaults: by name, from where."""

    versions: tuple[Version, ...]
    known: Mapping[Kind, Mapping[str, frozenset[int]]]
    defaults: Mapping[str, tuple[tuple[Version, object], ...]]


@once
def _table() -> _Table:
    read: dict[str, Any] = load_catalogue(files("winhost.knowledge").joinpath("vllm_options.yaml"))
    known: dict[Kind, dict[str, frozenset[int]]] = {"engine": {}, "env": {}}
    for kind, where in _WHERE.items():
        for at, names in read[where].items():
            ends = [tuple(map(int, run.split("-"))) for run in at.split()]
            known[kind].update(dict.fromkeys(names.split(), frozenset(i for a, b in ends for i in range(a, b + 1))))
    defaults = {
        name: tuple((Version(since), value) for since, value in values.items())
        for name, values in read["defaults"].items()
    }
    return _Table(tuple(map(Version, read["versions"])), known, defaults)


def seen_versions() -> tuple[Version, ...]:
    """The versions whose parsers were asked, in order."""
    return _table().versions


def knows(kind: Kind, name: str, version: Version) -> bool | None:
    """Tell whether a version has an option or variable. Between two versions that differ, and before the first: None; a
    version after the last is taken to be like that.
    """
    table = _table()
    having = table.known[kind].get(name, frozenset())
    after = bisect_right(table.versions, version)
    if after == 0:
        return None
    before = after - 1
    if table.versions[before] == version or after == len(table.versions) or (before in having) is (after in having):
        return before in having
    return None


def changed_default(name: str, version: Version) -> str | None:
    """A sentence where vLLM's own default is not the same in all versions: what it is in this one, and what it was."""
    steps = _table().defaults.get(name)
    if steps is None:
        return None
    now = max((i for i, (since, _) in enumerate(steps) if since <= version), default=0)
    since, value = steps[now]
    before = f", {_shown(steps[now - 1][1])} before" if now else ""
    after = f", {_shown(steps[now + 1][1])} from {steps[now + 1][0]} on" if now + 1 < len(steps) else ""
    return f"vLLM's own default here is {_shown(value)}{f' since {since}' if now else ''}{before or after}"


def _shown(value: object) -> str:
    return "decided at the start" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def names(kind: Kind) -> Mapping[str, frozenset[int]]:
    """All that any version has."""
    return _table().known[kind]


def versions_with(kind: Kind, name: str) -> tuple[Version, ...]:
    """The versions, of those that were asked, that have it, in order."""
    table = _table()
    return tuple(table.versions[at] for at in sorted(table.known[kind].get(name, ())))
