"""What a journal tells: which plan, what was begun, what is done, what is in flight. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from winhost.engine.journal import Entry
from winhost.engine.order import Id, identity
from winhost.model.documents import parse_document
from winhost.model.facts import Json, Key
from winhost.model.plan import Plan, Stage, Step


@dataclass(frozen=True)
class Touched:
    """A resource that this run changed, from its first state to the one it was left in.

    `before` is whole, as the host told it at the first change; `changed` are the properties that we set, `after` the
    state we left. `open`: a set was begun and its end is not known.
    """

    noun: str
    key: Key
    title: str
    before: Mapping[str, Json]
    changed: tuple[str, ...]
    after: Mapping[str, Json]
    open: bool = False


@dataclass(frozen=True)
class Record:
    """A run as its journal tells it."""

    run: str
    host: str
    plan: Plan
    accepted: frozenset[str] = frozenset()
    stages: tuple[Stage, ...] = ()
    finished_stages: frozenset[int] = frozenset()
    touched: Mapping[Id, Touched] = field(default_factory=dict)
    in_flight: Step | None = None
    restart_due: bool = False
    restarting_from: str | None = None
    going_back: bool = False
    outcome: str | None = None
    began: str = ""
    last: str = ""


def replay(run: str, entries: Iterable[Entry]) -> Record:
    """Fold the entries into a record; the first must be `run`."""
    first, *rest = entries
    plan = parse_document(first["plan"], Plan)
    record = Record(
        run=run,
        host=plan.host,
        plan=plan,
        accepted=frozenset(first["accepted"]),
        stages=plan.stages[:1],
        began=first["at"],
        last=first["at"],
    )
    for entry in rest:
        record = fold(record, entry)
    return record


def fold(record: Record, entry: Entry) -> Record:
    """The record after one more entry."""
    after: Record = _FOLDS[entry["event"]](record, entry)
    return replace(after, last=entry["at"])


def _planned(record: Record, entry: Entry) -> Record:
    return replace(record, stages=(*record.stages, parse_document(entry["stage"], Stage)))


def _begin(record: Record, entry: Entry) -> Record:
    step = parse_document(entry["step"], Step)
    id_ = identity(step.noun, step.key)
    if record.going_back:
        return replace(record, in_flight=step)
    known = record.touched.get(id_)
    before = known.before if known else entry["found"]
    touched = Touched(
        noun=step.noun,
        key=step.key,
        title=step.title,
        before=before,
        changed=tuple(dict.fromkeys((*(known.changed if known else ()), *step.want))),
        after={**(known.after if known else before), **step.want},
        open=True,
    )
    return replace(record, in_flight=step, touched={**record.touched, id_: touched}, outcome=None)


def _end(record: Record, entry: Entry) -> Record:
    due = record.restart_due or bool(entry["restart"])
    record = replace(record, in_flight=None, restart_due=due)
    if record.going_back or entry["after"] is None:
        return record
    return _left(record, identity(entry["noun"], entry["key"]), entry["after"])


def _left(record: Record, id_: Id, after: Mapping[str, Json]) -> Record:
    touched = replace(record.touched[id_], after=after, open=False)
    return replace(record, touched={**record.touched, id_: touched})


def _failed(record: Record, entry: Entry) -> Record:
    record = replace(record, in_flight=None)
    if record.going_back or entry["after"] is None:
        return record
    return _left(record, identity(entry["noun"], entry["key"]), entry["after"])


def _restarting(record: Record, entry: Entry) -> Record:
    return replace(record, restarting_from=entry["boot_id"], restart_due=True)


def _restarted(record: Record, entry: Entry) -> Record:
    """A change that took effect with the restart is what it is now, not what it was while pending."""
    record = replace(record, restarting_from=None, restart_due=False)
    if not record.going_back:
        for left in entry["left"]:
            record = _left(record, identity(left["noun"], left["key"]), left["after"])
    return record


def _stage(record: Record, entry: Entry) -> Record:
    return replace(record, finished_stages=record.finished_stages | {entry["number"]})


def _accept(record: Record, entry: Entry) -> Record:
    return replace(record, accepted=record.accepted | set(entry["accepted"]), outcome=None)


def _back(record: Record, entry: Entry) -> Record:
    """Consents given for going there are not consents for going back."""
    return replace(record, going_back=True, accepted=frozenset(entry["accepted"]), in_flight=None, outcome=None)


def _outcome(record: Record, entry: Entry) -> Record:
    return replace(record, outcome=entry["outcome"])


_FOLDS: Mapping[str, Any] = {
    "planned": _planned,
    "begin": _begin,
    "end": _end,
    "failed": _failed,
    "restarting": _restarting,
    "restarted": _restarted,
    "stage": _stage,
    "accept": _accept,
    "back": _back,
    "outcome": _outcome,
}
