"""Compute the state of a run from its journal: its plan, its changes, and the step in flight. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from winhost.core import changes
from winhost.core.answers import Id, Json, Key, identity
from winhost.core.changes import Changes, InvalidEntry
from winhost.core.dataclass import dataclass
from winhost.core.journal_lines import RawEvent
from winhost.engine import events
from winhost.engine.events import parse_event
from winhost.engine.journal import damaged_journal_error
from winhost.engine.planfile import plan_mistakes, step_mistakes
from winhost.model.errors import UsageError
from winhost.model.plan import Plan, Stage
from winhost.model.yamlfile import Mistake, dotted
from winhost.resources.registry import check_desired


@dataclass(frozen=True, kw_only=True)
class RunState(Changes):
    """The state of a run by its journal. id: see `id_of`; began, last: times of the first and the last line."""

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
    def moved_needs(self) -> Mapping[Id, Mapping[str, tuple[Json, Json]]]:
        """Properties that were changed as needs of other steps, and neither restored nor at their desired value: the
        value before the run, and the present one.
        """
        last = {identity(w.resource, w.key): w.desired for stage in self.stages for w in stage.desired}
        needs = {}
        for id_, touched in self.touched.items():
            now = {**touched.after, **(touched.transitional[-1] if self.going_back and touched.transitional else {})}
            moved = {
                name: (before, now[name])
                for name, before in touched.original.items()
                if now[name] not in (before, last.get(id_, {}).get(name, before))
            }
            if moved:
                needs[id_] = moved
        return needs

    @property
    def midway(self) -> tuple[str, ...]:
        """Sentences about the unfinished step, and about needs that are not restored yet."""
        in_flight = (f"{self.in_flight.title}: not finished",) if self.in_flight else ()
        return in_flight + tuple(
            f"{self.touched[id_].title}: {name} is {now}, was {before}"
            for id_, moved in self.moved_needs.items()
            for name, (before, now) in moved.items()
        )


class RunNeverBegan(UsageError):
    """A journal has no complete line."""

    def __init__(self, run: str) -> None:
        super().__init__(
            "NeverBegun",
            what=f"{run}: begun, nothing done",
            meaning="It ended before its first line was on disk, so nothing was changed and there is nothing to undo.",
            hint="Apply the plan again.",
        )


def replay(run: str, lines: Iterable[RawEvent]) -> RunState:
    """Fold the lines of a journal into a record. Raises RunNeverBegan if there are none, UsageError (Damaged) for a
    line that no run can have written.
    """
    record: RunState | None = None
    for line in lines:
        try:
            record = fold(record, line) if record else _start_record(run, parse_event(line))
        except ValidationError as error:
            raise _damaged_line_error(run, line, error) from error
        except InvalidEntry as invalid:
            raise damaged_journal_error(Path(f"{run}.jsonl"), line["n"], str(invalid)) from invalid
    if record is None:
        raise RunNeverBegan(run)
    return record


def id_of(lines: Sequence[RawEvent]) -> str:
    """Return the id of a run, which is unique even if two controllers gave their runs the same name."""
    return str(lines[0]["hash"])


def has_ended(lines: Sequence[RawEvent]) -> bool:
    """Tell whether the last line is the outcome. A host may have hundreds of runs, so the others are not replayed."""
    return bool(lines) and lines[-1].get("event") == "outcome"


def parse_events(run: str, lines: Iterable[RawEvent]) -> Iterator[events.JournalEvent]:
    """Parse the lines of a journal. Raises UsageError (Damaged) for a line that no run can have written."""
    for line in lines:
        try:
            yield parse_event(line)
        except ValidationError as error:
            raise _damaged_line_error(run, line, error) from error


def _damaged_line_error(run: str, line: RawEvent, error: ValidationError) -> UsageError:
    first = error.errors()[0]
    why = ": ".join(part for part in (".".join(map(str, first["loc"])), first["msg"]) if part)
    return damaged_journal_error(Path(f"{run}.jsonl"), line["n"], why)


def fold(record: RunState, line: RawEvent) -> RunState:
    """Return the record after one more line."""
    entry = parse_event(line)
    if isinstance(entry, events.RunStarted):
        raise InvalidEntry("a second beginning")
    own_stop = entry if isinstance(entry, events.RunStopped) else None
    # The outcome follows the reason of a stop, and does not replace it.
    stopped_event = record.stopped if isinstance(entry, events.RunEnded) else own_stop
    return replace(_FOLDS[type(entry)](record, entry), last=entry.at, stopped=stopped_event)


def _start_record(run: str, entry: events.JournalEvent) -> RunState:
    if not isinstance(entry, events.RunStarted):
        raise InvalidEntry("it does not begin with the plan")
    if not entry.plan.stages:
        raise InvalidEntry("its plan has no stage")
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
        raise InvalidEntry(f"{dotted(loc)}: {message}")


def _refuse_misfits(*stages: Stage) -> None:
    for desired in (desired for stage in stages for desired in stage.desired):
        _refuse_misfit(desired.resource, desired.key, desired.desired)


def _refuse_misfit(resource: str, key: Key, desired: Mapping[str, Json]) -> None:
    if misfit := check_desired(resource, key, desired):
        raise InvalidEntry(misfit)


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
    record = changes.record_step_start(record, step, entry.found, entry.users)
    _refuse_mistakes(step_mistakes(("step",), step))
    return record


def _amend(record: RunState, entry: events.RequestAmended) -> RunState:
    """Replace the request. Consents for the previous one do not count."""
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
    events.StepEnded: lambda run, event: changes.record_step_end(run, _id(event), event.after, event.restart),
    events.StepRefused: lambda run, event: changes.record_step_end(run, _id(event), event.after),
    events.RestartStarted: lambda run, event: changes.record_restart_request(run, event.boot_id),
    events.RestartEnded: lambda run, event: changes.record_restart(
        run, ((_id(each), each.after) for each in event.left)
    ),
    events.DependentsNoted: lambda run, event: changes.record_dependents(
        run, {_id(each): each.users for each in event.resources}
    ),
    events.ResourcesRestored: lambda run, event: changes.record_restored(run, map(_id, event.resources)),
    events.StageEnded: lambda run, event: replace(run, finished_stages=run.finished_stages | {event.number}),
    events.ConsentsGiven: lambda run, event: replace(run, accepted=run.accepted | set(event.accepted), outcome=None),
    # Consents for applying a plan are not consents for its rollback.
    events.RollbackStarted: lambda run, event: replace(
        changes.record_rollback_start(run), accepted=frozenset(event.accepted)
    ),
    events.RunStopped: lambda run, event: run,
    events.RequestAmended: _amend,
    events.RunEnded: lambda run, event: replace(run, outcome=event.outcome, waiting=event.waiting),
}
