"""What a journal tells: which plan, what was begun, what is done, what is in flight. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from winhost.core.answers import Json, Key
from winhost.core.journal_lines import RawEvent
from winhost.core.steps import Step
from winhost.engine import events
from winhost.engine.events import parse_event
from winhost.engine.journal import damaged
from winhost.engine.order import Id, identity
from winhost.engine.planfile import plan_findings, step_findings
from winhost.model.errors import UsageError
from winhost.model.plan import Plan, Stage
from winhost.model.yamlfile import Finding, dotted
from winhost.resources.base import Dependent
from winhost.resources.registry import RESOURCE_TYPES


@dataclass(frozen=True)
class ChangedResource:
    """A resource that this run changed, from its first state to the one it was left in.

    before: the whole state, as the host reported it at the first change. users: what rested on it by then. changed: the
    properties that the run set. after: the state that it left. transitional: states that are the run's doing as well,
    because it was on its way from or to them. dependents: what rested on it after the last stage, or None where a step
    was begun since. first_dependents: what did so as soon as that could be read.
    """

    resource: str
    key: Key
    title: str
    before: Mapping[str, Json]
    changed: tuple[str, ...]
    after: Mapping[str, Json]
    transitional: tuple[Mapping[str, Json], ...] = ()
    users: tuple[Dependent, ...] = ()
    dependents: tuple[Dependent, ...] | None = None
    first_dependents: tuple[Dependent, ...] | None = None

    @property
    def original(self) -> Mapping[str, Json]:
        """What we set, as it was found."""
        return {name: self.before[name] for name in self.changed}

    @property
    def is_restored(self) -> bool:
        """It was left as it was found, as far as is known."""
        return not self.transitional and all(self.after[name] == value for name, value in self.original.items())


@dataclass(frozen=True)
class RunState:
    """A run as its journal tells it. restored: what an earlier rollback has restored for good."""

    run: str
    host: str
    plan: Plan
    accepted: frozenset[str] = frozenset()
    stages: tuple[Stage, ...] = ()
    finished_stages: frozenset[int] = frozenset()
    touched: Mapping[Id, ChangedResource] = field(default_factory=dict)
    in_flight: Step | None = None
    restart_due: bool = False
    restarting_from: str | None = None
    going_back: bool = False
    restored: frozenset[Id] = frozenset()
    outcome: str | None = None
    began: str = ""
    last: str = ""
    folder: str = ""
    stopped: events.RunStopped | None = None

    @property
    def unchanged(self) -> bool:
        """The host is as it was found, as far as is known: nobody has to go on or back."""
        at_rest = self.in_flight is None and not self.restart_due
        return at_rest and all(touched.is_restored for touched in self.touched.values())

    @property
    def between(self) -> Mapping[Id, Mapping[str, tuple[Json, Json]]]:
        """Properties neither as they were found nor as they shall be, but moved for other steps: as found, and now."""
        last = {identity(w.resource, w.key): w.desired for stage in self.stages for w in stage.desired}
        found = {}
        for id_, touched in self.touched.items():
            now = {**touched.after, **(touched.transitional[-1] if self.going_back and touched.transitional else {})}
            moved = {
                name: (before, now[name])
                for name, before in touched.original.items()
                if now[name] not in (before, last.get(id_, {}).get(name, before))
            }
            if moved:
                found[id_] = moved
        return found

    @property
    def midway(self) -> tuple[str, ...]:
        """What was begun, and what was moved for other steps, in words."""
        begun = (f"{self.in_flight.title}: not finished",) if self.in_flight else ()
        return begun + tuple(
            f"{self.touched[id_].title}: {name} is {now}, was {before}"
            for id_, moved in self.between.items()
            for name, (before, now) in moved.items()
        )


class RunNeverBegan(UsageError):
    """A journal without a whole line."""

    def __init__(self, run: str) -> None:
        super().__init__(
            "NeverBegun",
            what=f"{run}: begun, nothing done",
            meaning="It ended before its first line was on disk, so nothing was changed and there is nothing to undo.",
            hint="Apply the plan again.",
        )


class _Unfitting(Exception):
    """A line that no run can have written."""


def replay(run: str, lines: Iterable[RawEvent]) -> RunState:
    """Fold the lines into a record.

    Raises RunNeverBegan where there are none, UsageError (Damaged) for one that no run has written.
    """
    record: RunState | None = None
    for line in lines:
        try:
            record = fold(record, line) if record else _begun(run, parse_event(line))
        except ValidationError as error:
            raise _damaged(run, line, error) from error
        except _Unfitting as unfitting:
            raise damaged(Path(f"{run}.jsonl"), line["n"], str(unfitting)) from unfitting
    if record is None:
        raise RunNeverBegan(run)
    return record


def parsed(run: str, lines: Iterable[RawEvent]) -> Iterator[events.JournalEvent]:
    """The lines, typed. Raises UsageError (Damaged) for one that no run has written."""
    for line in lines:
        try:
            yield parse_event(line)
        except ValidationError as error:
            raise _damaged(run, line, error) from error


def _damaged(run: str, line: RawEvent, error: ValidationError) -> UsageError:
    first = error.errors()[0]
    why = ": ".join(part for part in (".".join(map(str, first["loc"])), first["msg"]) if part)
    return damaged(Path(f"{run}.jsonl"), line["n"], why)


def fold(record: RunState, line: RawEvent) -> RunState:
    """The record after one more line."""
    entry = parse_event(line)
    if isinstance(entry, events.RunStarted):
        raise _Unfitting("a second beginning")
    stopped = entry if isinstance(entry, events.RunStopped) else None
    # How it ended says more than why it stopped, and comes behind it.
    kept = record.stopped if isinstance(entry, events.RunEnded) else stopped
    return replace(_FOLDS[type(entry)](record, entry), last=entry.at, stopped=kept)


def _begun(run: str, entry: events.JournalEvent) -> RunState:
    if not isinstance(entry, events.RunStarted):
        raise _Unfitting("it does not begin with the plan")
    if not entry.plan.stages:
        raise _Unfitting("its plan has no stage")
    _refuse_findings(plan_findings(entry.plan))
    _refuse_misfits(*entry.plan.stages)
    return RunState(
        run=run,
        host=entry.plan.host,
        plan=entry.plan,
        accepted=frozenset(entry.accepted),
        stages=entry.plan.stages[:1],
        folder=entry.folder,
        began=entry.at,
        last=entry.at,
    )


def _refuse_findings(findings: Iterable[Finding]) -> None:
    for loc, message in findings:
        raise _Unfitting(f"{dotted(loc)}: {message}")


def _refuse_misfits(*stages: Stage) -> None:
    for desired in (desired for stage in stages for desired in stage.desired):
        _refuse_misfit(desired.resource, desired.key, desired.desired)


def _refuse_misfit(resource: str, key: Key, desired: Mapping[str, Json]) -> None:
    misfit = (
        RESOURCE_TYPES[resource].misfit(key, desired)
        if resource in RESOURCE_TYPES
        else f"there is no resource {resource}"
    )
    if misfit:
        raise _Unfitting(misfit)


def _planned(record: RunState, entry: events.StagePlanned) -> RunState:
    _refuse_misfits(entry.stage)
    for step in entry.stage.steps:
        _refuse_findings(step_findings(("stage",), step))
    return replace(record, stages=(*record.stages, entry.stage))


def _begin(record: RunState, entry: events.StepStarted) -> RunState:
    step = entry.step
    _refuse_misfit(step.resource, step.key, step.desired)
    if not set(step.desired) == set(step.before) <= set(entry.found):
        raise _Unfitting("it does not say what it began from")
    _refuse_findings(step_findings(("step",), step))
    id_ = identity(step.resource, step.key)
    known = record.touched.get(id_)
    if record.going_back and known:
        # A VM that is off for other steps back: whoever goes on from here must not take that for somebody else's doing.
        moved = replace(known, transitional=(step.before, step.desired))
        return replace(record, in_flight=step, touched={**record.touched, id_: moved})
    before = known.before if known else entry.found
    touched = ChangedResource(
        resource=step.resource,
        key=step.key,
        title=step.title,
        before=before,
        changed=tuple(dict.fromkeys((*(known.changed if known else ()), *step.desired))),
        after={**(known.after if known else before), **step.desired},
        transitional=(step.before,),
        users=known.users if known else entry.users,
        first_dependents=known.first_dependents if known else None,
    )
    # What this step brings with it is nobody else's; what rests on what is told anew after it.
    others = {other: replace(known, dependents=None) for other, known in record.touched.items()}
    if record.going_back:
        others = dict(record.touched)
    return replace(record, in_flight=step, touched={**others, id_: touched}, outcome=None)


def _dependents_noted(record: RunState, entry: events.DependentsNoted) -> RunState:
    users_by_id = {identity(users_by_id.resource, users_by_id.key): users_by_id.users for users_by_id in entry.resting}
    if not users_by_id.keys() <= record.touched.keys():
        raise _Unfitting("it tells of what was not begun")
    touched = dict(record.touched)
    for id_, users in users_by_id.items():
        first = touched[id_].first_dependents
        touched[id_] = replace(touched[id_], dependents=users, first_dependents=users if first is None else first)
    return replace(record, touched=touched)


def _end(record: RunState, entry: events.StepEnded) -> RunState:
    return replace(_left(record, entry), in_flight=None, restart_due=record.restart_due or entry.restart)


def _failed(record: RunState, entry: events.StepRefused) -> RunState:
    return replace(_left(record, entry), in_flight=None)


def _left(record: RunState, left: events.StepEnded | events.StepRefused | events.StateAfterRestart) -> RunState:
    """What is so after a step or a restart, where that is known."""
    id_ = identity(left.resource, left.key)
    if id_ not in record.touched:
        raise _Unfitting("it ends what was not begun")
    if left.after is None:
        return record
    known = record.touched[id_]
    if record.going_back:
        # Only what was set back is our doing: the rest of it may be what somebody else changed since.
        ours = record.in_flight.desired if record.in_flight else ()
        touched = replace(known, transitional=({name: left.after[name] for name in ours if name in left.after},))
    else:
        touched = replace(known, after={**known.after, **left.after}, transitional=())
    return replace(record, touched={**record.touched, id_: touched})


def _restarting(record: RunState, entry: events.RestartStarted) -> RunState:
    return replace(record, restarting_from=entry.boot_id, restart_due=True)


def _restarted(record: RunState, entry: events.RestartEnded) -> RunState:
    """A change that took effect with the restart is what it is now, not what it was while pending."""
    record = replace(record, restarting_from=None, restart_due=False)
    for left in entry.left:
        record = _left(record, left) if not record.going_back else _took_effect_late(record, left)
    return record


def _took_effect_late(record: RunState, left: events.StateAfterRestart) -> RunState:
    """On the way back: a run that was killed on the way there may still owe the restart of that."""
    id_ = identity(left.resource, left.key)
    known = record.touched.get(id_)
    if known is None or known.transitional or left.after is None:
        return record
    touched = replace(known, after={**known.after, **left.after})
    return replace(record, touched={**record.touched, id_: touched})


def _stage(record: RunState, entry: events.StageEnded) -> RunState:
    return replace(record, finished_stages=record.finished_stages | {entry.number})


def _accept(record: RunState, entry: events.ConsentsGiven) -> RunState:
    return replace(record, accepted=record.accepted | set(entry.accepted), outcome=None)


def _back(record: RunState, entry: events.RollbackStarted) -> RunState:
    """Consents given for going there are not consents for going back."""
    return replace(record, going_back=True, accepted=frozenset(entry.accepted), in_flight=None, outcome=None)


def _nothing(record: RunState, entry: events.RunStopped | events.RunContinued) -> RunState:
    return record


def _amend(record: RunState, entry: events.RequestAmended) -> RunState:
    """Consents given for the request before are not consents for this one."""
    _refuse_misfits(entry.stage)
    for step in entry.stage.steps:
        _refuse_findings(step_findings(("stage",), step))
    finished = tuple(stage for stage in record.stages if stage.number in record.finished_stages)
    plan = replace(record.plan, request=entry.request)
    stages = (*finished, entry.stage)
    return replace(record, plan=plan, stages=stages, accepted=frozenset(entry.accepted), outcome=None)


def _outcome(record: RunState, entry: events.RunEnded) -> RunState:
    return replace(record, outcome=entry.outcome)


def _restored(record: RunState, entry: events.ResourcesRestored) -> RunState:
    restored = frozenset(identity(thing.resource, thing.key) for thing in entry.resources)
    if not restored <= record.touched.keys():
        raise _Unfitting("it gives back what was not begun")
    return replace(record, restored=restored)


_FOLDS: Mapping[type[events.JournalEvent], Callable[[RunState, Any], RunState]] = {
    events.StagePlanned: _planned,
    events.StepStarted: _begin,
    events.StepEnded: _end,
    events.StepRefused: _failed,
    events.RestartStarted: _restarting,
    events.RestartEnded: _restarted,
    events.DependentsNoted: _dependents_noted,
    events.ResourcesRestored: _restored,
    events.StageEnded: _stage,
    events.ConsentsGiven: _accept,
    events.RollbackStarted: _back,
    events.RunStopped: _nothing,
    events.RunContinued: _nothing,
    events.RequestAmended: _amend,
    events.RunEnded: _outcome,
}
