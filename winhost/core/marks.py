"""Marks: for each change of a run, a line on the host with the values before the change and those that the run set.

Journals are on the controllers. Marks let a rollback distinguish changes by runs of other controllers from changes by
people. The host stores a mark before the change, and keeps it until the run is rolled back.
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

_LONGEST_TEXT = 200  # bytes; longer texts are stored as their hash
_RUN = re.compile(r"[A-Za-z0-9_%-]{1,200}\.[A-Za-z0-9-]{1,40}")  # it becomes part of a command that is printed


@dataclass(frozen=True)
class MarkedRun:
    """The run that a mark belongs to. id: unique among runs of the same name; by: the account and the computer."""

    run: str
    id: str
    by: str

    def __str__(self) -> str:
        return f"{self.run} ({'a bundle' if self.by == BUNDLE else self.by[:100]})"

    @property
    def rollback(self) -> str:
        """The instruction that rolls the run back."""
        if self.by == BUNDLE:
            return f"on the host, with the bundle of {self.run}: Rollback.ps1, or in Linux run.py rollback"
        return f"as {self.by[:100]}: winhost rollback {self.run}"


@dataclass(frozen=True)
class Mark:
    """One change of a run. found: values before it; set: values that the run set. Long texts are stored as hashes."""

    run: MarkedRun
    resource: Id
    found: Mapping[str, Json]
    set: Mapping[str, Json]


def mark_of(run: MarkedRun, step: Step) -> str:
    """Format the line that the host stores for a step."""
    line = {
        "run": run.run,
        "id": run.id,
        "by": run.by,
        "resource": step.resource,
        "key": dict(step.key),
        "found": _shorten(step.before),
        "set": _shorten(step.desired),
    }
    return json.dumps(line, separators=(",", ":"))


def _shorten(state: Mapping[str, Json]) -> dict[str, Json]:
    return {name: _hash_long_text(value) for name, value in state.items()}


def _hash_long_text(value: Json) -> Json:
    """Replace a long text by its hash, which is enough for comparisons."""
    text = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else b""
    return {"sha256": hashlib.sha256(text).hexdigest()} if len(text) > _LONGEST_TEXT else value


def read_mark(line: str) -> Mark | None:
    """Parse a mark; None for a line that no run wrote. Such lines are ignored and never removed."""
    with suppress(ValueError, RecursionError, LookupError, TypeError, AttributeError):
        entry = json.loads(line)
        texts = [entry["run"], entry["id"], entry["by"], entry["resource"], *entry["key"].values()]
        is_valid = all(isinstance(text, str) for text in texts) and _RUN.fullmatch(entry["run"])
        if is_valid and entry["found"].keys() == entry["set"].keys():
            run = MarkedRun(entry["run"], entry["id"], entry["by"])
            return Mark(run, identity(entry["resource"], entry["key"]), entry["found"], entry["set"])
    return None


def read_marks(lines: Iterable[str]) -> tuple[Mark, ...]:
    """Parse the marks among these lines, oldest first."""
    return tuple(mark for line in lines if (mark := read_mark(line)))


def remove_run_marks(lines: Sequence[str], id_: str, keep: Iterable[Id] = ()) -> list[str]:
    """Return the lines without the marks of a run. id_: of the run; keep: resources whose marks stay."""
    kept_ids = frozenset(keep)
    parsed = [(line, read_mark(line)) for line in lines]
    return [line for line, mark in parsed if mark is None or mark.run.id != id_ or mark.resource in kept_ids]


def find_later_runs(
    touched: ChangedResource, names: Iterable[str], marks: Sequence[Mark], run_id: str, now: Mapping[str, Json]
) -> tuple[MarkedRun, ...]:
    """Return the later runs whose rollback would restore one of these properties to another value than before this run,
    latest first. run_id: of this run; now: the present state.

    If the present value is not the one that the last of them set, somebody else has changed it after all of them.
    """
    id_ = identity(touched.resource, touched.key)
    about = [mark for mark in marks if mark.resource == id_]
    runs = (
        run
        for name in names
        for run in _find_changers(
            name, _hash_long_text(touched.original[name]), about, run_id, _hash_long_text(now[name])
        )
    )
    return tuple(dict.fromkeys(runs))


def _find_changers(name: str, original: Json, marks: Sequence[Mark], run_id: str, value: Json) -> Iterator[MarkedRun]:
    for run, (found, last_set) in reversed(_values_of_later_runs(name, marks, run_id).items()):
        if last_set == value and found != last_set:
            if found != original:
                yield run
            value = found
        elif found != value:  # equal to `found`: its change did not take place, or is undone already
            return


def _values_of_later_runs(name: str, marks: Sequence[Mark], run_id: str) -> dict[MarkedRun, tuple[Json, Json]]:
    """Return by later run the first value that it found and the last one that it set, after this run's own change."""
    later: dict[MarkedRun, tuple[Json, Json]] = {}
    for mark in marks:
        if name not in mark.set:
            continue
        if mark.run.id == run_id:
            later = {}
        else:
            found, _ = later.get(mark.run, (mark.found[name], None))
            later[mark.run] = (found, mark.set[name])
    return later
