"""Compute the state of a run from its journal: its plan, what was begun, what is done, what is in flight. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from winhost.core import changes
from winhost.core.answers import Id, Json, Key, identity
from winhost.core.changes import Changes, Unfitting
from winhost.core.dataclass import dataclass
from winhost.core.journal_lines import RawEvent
from winhost.engine import events
from winhost.engine.events import parse_event
from winhost.engine.journal import damaged
from winhost.engine.planfile import plan_mistakes, step_mistakes
from winhost.model.errors import UsageError
from winhost.model.plan import Plan, Stage
from winhost.model.yamlfile import Mistake, dotted
from winhost.resources.registry import check_desired


@dataclass(frozen=True, kw_only=True)
class RunState(Changes):
    """A run as its journal tells it. id: as `id_of` has it."""

    run: str
    host: str
    plan: Plan
    accepted: frozenset[str] = frozenset()
    stages: tuple[Stage, ...] = ()
    finished_stages: frozenset[int] = frozenset()
    waiting: tuple[events.Waiting, ...] = ()
    began: str = ""
    last: str = ""
    folder: str = ""
    stopped: events.RunStopped | None = None

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
        """The unfinished step, and needs that were met for other steps, in words."""
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
        except Unfitting as unfitting:
            raise damaged(Path(f"{run}.jsonl"), line["n"], str(unfitting)) from unfitting
    if record is None:
        raise RunNeverBegan(run)
    return record


def id_of(lines: Sequence[RawEvent]) -> str:
    """Tells runs apart that two controllers gave the same name."""
    return str(lines[0]["hash"])


def has_ended(lines: Sequence[RawEvent]) -> bool:
    """Tell whether the last line is its end. One line is enough, because a host may have hundreds of runs behind it."""
    return bool(lines) and lines[-1].get("event") == "outcome"


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
        raise Unfitting("a second beginning")
    stopped = entry if isinstance(entry, events.RunStopped) else None
    # How it ended says more than why it stopped, and comes behind it.
    kept = record.stopped if isinstance(entry, events.RunEnded) else stopped
    return replace(_FOLDS[type(entry)](record, entry), last=entry.at, stopped=kept)


def _begun(run: str, entry: events.JournalEvent) -> RunState:
    if not isinstance(entry, events.RunStarted):
        raise Unfitting("it does not begin with the plan")
    if not entry.plan.stages:
        raise Unfitting("its plan has no stage")
    _refuse_mistakes(plan_mistakes(entry.plan))
    _refuse_misfits(*entry.plan.stages)
    return RunState(
        run=run,
        id=entry.hash,
        host=entry.plan.host,
        plan=entry.plan,
        accepted=frozenset(entry.accepted),
        stages=entry.plan.stages[:1],
        folder=entry.folder,
        began=entry.at,
        last=entry.at,
    )


def _refuse_mistakes(mistakes: Iterable[Mistake]) -> None:
    for loc, message in mistakes:
        raise Unfitting(f"{dotted(loc)}: {message}")


def _refuse_misfits(*stages: Stage) -> None:
    for desired in (desired for stage in stages for desired in stage.desired):
        _refuse_misfit(desired.resource, desired.key, desired.desired)


def _refuse_misfit(resource: str, key: Key, desired: Mapping[str, Json]) -> None:
    if misfit := check_desired(resource, key, desired):
        raise Unfitting(misfit)


def _refuse_stage(stage: Stage) -> None:
    _refuse_misfits(stage)
    for step in stage.steps:
        _refuse_mistakes(step_mistakes(("stage",), step))


def _planned(record: RunState, entry: events.StagePlanned) -> RunState:
    _refuse_stage(entry.stage)
    return replace(record, stages=(*record.stages, entry.stage))


def _begin(record: RunState, entry: events.StepStarted) -> RunState:
    step = entry.step
    _refuse_misfit(step.resource, step.key, step.desired)
    record = changes.begun(record, step, entry.found, entry.users)
    _refuse_mistakes(step_mistakes(("step",), step))
    return record


def _amend(record: RunState, entry: events.RequestAmended) -> RunState:
    """Consents given for the request before are not consents for this one."""
    _refuse_stage(entry.stage)
    finished = tuple(stage for stage in record.stages if stage.number in record.finished_stages)
    plan = replace(record.plan, request=entry.request)
    stages = (*finished, entry.stage)
    return replace(record, plan=plan, stages=stages, accepted=frozenset(entry.accepted), outcome=None)


def _id(each: Any) -> Id:
    return identity(each.resource, each.key)


# bundle/linux_journal folds the lines of an offline package likewise.
_FOLDS: Mapping[type[events.JournalEvent], Callable[[RunState, Any], RunState]] = {
    events.StagePlanned: _planned,
    events.StepStarted: _begin,
    events.StepEnded: lambda run, told: changes.ended(run, _id(told), told.after, told.restart),
    events.StepRefused: lambda run, told: changes.ended(run, _id(told), told.after),
    events.RestartStarted: lambda run, told: changes.restarting(run, told.boot_id),
    events.RestartEnded: lambda run, told: changes.restarted(run, ((_id(each), each.after) for each in told.left)),
    events.DependentsNoted: lambda run, told: changes.noted(run, {_id(each): each.users for each in told.resources}),
    events.ResourcesRestored: lambda run, told: changes.restored(run, map(_id, told.resources)),
    events.StageEnded: lambda run, told: replace(run, finished_stages=run.finished_stages | {told.number}),
    events.ConsentsGiven: lambda run, told: replace(run, accepted=run.accepted | set(told.accepted), outcome=None),
    # Consents given for going there are not consents for going back.
    events.RollbackStarted: lambda run, told: replace(changes.turned_back(run), accepted=frozenset(told.accepted)),
    events.RunStopped: lambda run, told: run,
    events.RequestAmended: _amend,
    events.RunEnded: lambda run, told: replace(run, outcome=told.outcome, waiting=told.waiting),
}
