"""Marks: for each change of a run, a line on the host that says what the run found and what it set.

Journals are on the controllers. By marks, rollback tells what the run of another controller changed from what a person
did. A host keeps them from before the change until the run is rolled back.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from .answers import Id, Json, identity
from .changes import ChangedResource
from .dataclass import dataclass
from .steps import Step

BUNDLE = "bundle"
"""The controller named in the marks of a package that was applied by hand."""

_LONG = 200  # bytes of a text
_RUN = re.compile(r"[A-Za-z0-9_%-]{1,200}\.[A-Za-z0-9-]{1,40}")  # it becomes part of a command that is printed


@dataclass(frozen=True)
class MarkedRun:
    """The run that left a mark. id: tells runs of the same name apart; by: who runs it, and where."""

    run: str
    id: str
    by: str

    def __str__(self) -> str:
        return f"{self.run} ({'a bundle' if self.by == BUNDLE else self.by[:100]})"

    @property
    def rollback(self) -> str:
        """Tell whoever has its journal how it is rolled back."""
        if self.by == BUNDLE:
            return f"on the host, with the bundle of {self.run}: Rollback.ps1, or in Linux run.py rollback"
        return f"as {self.by[:100]}: winhost rollback {self.run}"


@dataclass(frozen=True)
class Mark:
    """The state that a run found of a resource, and what it set; long texts as their hash."""

    run: MarkedRun
    resource: Id
    found: Mapping[str, Json]
    set: Mapping[str, Json]


def mark_of(run: MarkedRun, step: Step) -> str:
    """The line that the host keeps."""
    line = {
        "run": run.run,
        "id": run.id,
        "by": run.by,
        "resource": step.resource,
        "key": dict(step.key),
        "found": _short(step.before),
        "set": _short(step.desired),
    }
    return json.dumps(line, separators=(",", ":"))


def _short(state: Mapping[str, Json]) -> dict[str, Json]:
    return {name: _hashed(value) for name, value in state.items()}


def _hashed(value: Json) -> Json:
    """Replace a long text by its hash: a file is not kept a second time only to be compared."""
    text = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else b""
    return {"sha256": hashlib.sha256(text).hexdigest()} if len(text) > _LONG else value


def read_mark(line: str) -> Mark | None:
    """Parse a mark; None for a line that no run wrote, which is ignored and never removed."""
    with suppress(ValueError, RecursionError, LookupError, TypeError, AttributeError):
        said = json.loads(line)
        texts = [said["run"], said["id"], said["by"], said["resource"], *said["key"].values()]
        known = all(isinstance(text, str) for text in texts) and _RUN.fullmatch(said["run"])
        if known and said["found"].keys() == said["set"].keys():
            run = MarkedRun(said["run"], said["id"], said["by"])
            return Mark(run, identity(said["resource"], said["key"]), said["found"], said["set"])
    return None


def read_marks(lines: Iterable[str]) -> tuple[Mark, ...]:
    """Parse the marks among these lines, oldest first."""
    return tuple(mark for line in lines if (mark := read_mark(line)))


def without(lines: Sequence[str], id_: str, but: Iterable[Id] = ()) -> list[str]:
    """The lines that stay when a run is rolled back, except for these resources."""
    kept = frozenset(but)
    found = [(line, read_mark(line)) for line in lines]
    return [line for line, mark in found if mark is None or mark.run.id != id_ or mark.resource in kept]


def moved_since(
    touched: ChangedResource, names: Iterable[str], marks: Sequence[Mark], own: str, now: Mapping[str, Json]
) -> tuple[MarkedRun, ...]:
    """Find later runs whose rollback would restore one of these properties to something else than this run found,
    latest first. own: the id of this run.

    Where the value is not what the last of them set, somebody else changed it after all of them.
    """
    id_ = identity(touched.resource, touched.key)
    about = [mark for mark in marks if mark.resource == id_]
    found = (
        run for name in names for run in _movers(name, _hashed(touched.original[name]), about, own, _hashed(now[name]))
    )
    return tuple(dict.fromkeys(found))


def _movers(name: str, original: Json, marks: Sequence[Mark], own: str, value: Json) -> Iterator[MarkedRun]:
    for run, (found, left) in reversed(_later(name, marks, own).items()):
        if left == value and found != left:
            if found != original:
                yield run
            value = found
        elif found != value:  # what it found is so where its change did not take place, or is undone already
            return


def _later(name: str, marks: Sequence[Mark], own: str) -> dict[MarkedRun, tuple[Json, Json]]:
    """The values that each later run found first and set last, after this run's own change."""
    later: dict[MarkedRun, tuple[Json, Json]] = {}
    for mark in marks:
        if name not in mark.set:
            continue
        if mark.run.id == own:
            later = {}
        else:
            found, _ = later.get(mark.run, (mark.found[name], None))
            later[mark.run] = (found, mark.set[name])
    return later
