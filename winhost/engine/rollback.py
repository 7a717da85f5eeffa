"""Going back: undo exactly what a run changed, in reverse, and keep what others and later runs use."""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress

from winhost.core.answers import Id, MissingFact, Unavailable, identity
from winhost.core.checks import check
from winhost.core.dataclass import dataclass
from winhost.core.marks import Mark, MarkedRun, read_marks
from winhost.core.order import steps_for
from winhost.core.rollback import LaterRuns, Turn, in_turns, outlook, turn_of
from winhost.core.steps import DesiredResource, Step
from winhost.engine.events import Waiting
from winhost.engine.failures import ConsentNeeded
from winhost.engine.journal import read_journal
from winhost.engine.run_context import NotJudged, Outcome, RunContext
from winhost.engine.run_state import RunState, id_of, replay
from winhost.engine.run_steps import WorkingRun
from winhost.engine.store import Store
from winhost.model.documents import plain
from winhost.model.errors import WinhostError
from winhost.model.facts import Facts
from winhost.resources.registry import LINUX, RULES, answer, describe_missing, host_answers, title_of
from winhost.resources.shared import RUNNING, WITHIN_PARTITION, WITHIN_VM


def later_runs(record: RunState, store: Store, marks: Sequence[Mark] = ()) -> LaterRuns:
    """Later runs on the same machine that are not rolled back."""
    names = store.runs_of(record.host)
    runs = tuple(
        later
        for name in names[names.index(record.run) + 1 if record.run in names else 0 :]
        if (later := _replayed(name, store)) and later.plan.machine_id == record.plan.machine_id
        if later.outcome != "rolled back" and not later.unchanged
    )
    standing = {record.id, *(run.id for run in runs)}
    passed = {run for run in {mark.run for mark in marks} if run.id not in standing and _is_of_here(run, store)}
    return LaterRuns(runs, tuple(mark for mark in marks if mark.run not in passed))


def waiting_for(run: str, host: str, store: Store) -> tuple[str, ...]:
    """Partly rolled back runs that keep something for this one, newest first: the order in which they can go on."""
    others = [name for name in store.runs_of(host) if name != run]
    partly = [record for name in others if (record := _replayed(name, store)) and record.waiting]
    return tuple(record.run for record in reversed(partly) if any(run in each.runs for each in record.waiting))


def _is_of_here(run: MarkedRun, store: Store) -> bool:
    """Its journal is on this computer."""
    with suppress(WinhostError):
        lines = read_journal(store.existing(run.run))
        return bool(lines) and id_of(lines) == run.id
    return False


def _replayed(run: str, store: Store) -> RunState | None:
    try:
        return replay(run, read_journal(store.existing(run)))
    except WinhostError:
        return None  # nobody can go on with it, either


_MOST_ALONG = 6  # titles in one sentence
_HOLD_LINUX = (WITHIN_VM.resource, WITHIN_PARTITION.resource)


@dataclass(frozen=True)
class RollbackOutlook:
    """The outlook of a rollback now: what is restored, what is kept and why, and what cannot be judged. open: all that
    stays for that, or for others; along: what needs no step because it goes with its VM, in a sentence; waiting: what
    of `kept` goes back once what came later is taken back.
    """

    desired: tuple[DesiredResource, ...]
    kept: tuple[str, ...]
    missing: tuple[NotJudged, ...]
    open: frozenset[Id]
    along: tuple[str, ...] = ()
    waiting: tuple[Waiting, ...] = ()


def rollback(run: str, accepted: Iterable[str], context: RunContext) -> Outcome:
    """Give the host back. Safe to repeat: what is undone already needs nothing. Raises ConsentNeeded first."""
    with context.store.lock(context.connector.host, f"rollback {run}"):
        runner = _Rollback(run, context)
        runner.given = frozenset(accepted)
        with runner.reaching():
            return runner.back()


def look(run: str, context: RunContext) -> tuple[tuple[Step, ...], RollbackOutlook, Facts]:
    """Read the host and return what `preview` says of it, and its facts. Changes nothing."""
    with context.store.lock(context.connector.host, f"rollback {run}"):
        runner = _Rollback(run, context)
        with runner.reaching(looking=True):
            runner.session.reach()
            facts = runner.seen()
            return *preview(runner.record, facts, runner.later()), facts


def preview(record: RunState, facts: Facts, later: LaterRuns) -> tuple[tuple[Step, ...], RollbackOutlook]:
    """The steps that rollback would take now, what it would keep, and what it cannot tell."""
    back = find_back(record, facts, later)
    return tuple(step for part in in_turns(back.desired, _turn) for step in _steps(part, facts, record)), back


def find_back(record: RunState, facts: Facts, later: LaterRuns, put_back: Set[Id] = frozenset()) -> RollbackOutlook:
    """Find what can be undone by now, and what stays. put_back: what this rollback has restored already."""
    found = outlook(record, host_answers(facts), later, put_back)
    kept = {id_: _with_names(why, facts) for id_, why in found.kept.items()}
    # The VM or the partition of this run goes, and with it its Linux, whatever was changed in that.
    goes = any(goal.resource in _HOLD_LINUX and goal.desired.get("made") is False for goal in found.goals.values())
    inside = [id_ for id_ in found.goals if goes and id_[0] in LINUX]
    titles, along = list(dict.fromkeys(record.touched[id_].title for id_ in inside)), ""
    if titles:
        along = f"not undone, because it goes with its Linux: {'; '.join(titles[:_MOST_ALONG])}"
        along += f" and {len(titles) - _MOST_ALONG} more" if len(titles) > _MOST_ALONG else ""
    return RollbackOutlook(
        tuple(goal for id_, goal in found.goals.items() if id_ not in inside),
        tuple(f"{record.touched[id_].title}: kept: {why}" for id_, why in kept.items()),
        tuple(_not_judged(id_, record, missing) for id_, missing in found.missing.items()),
        found.open,
        (along,) if along else (),
        tuple(
            Waiting(record.touched[id_].title, kept[id_], held.runs, held.others) for id_, held in found.waiting.items()
        ),
    )


def _with_names(sentence: str, facts: Facts) -> str:
    """VMs by their names, where the host tells those, and no two have the same."""
    vms = answer(facts, "Vm")
    known = [(each.key["vm"], each.state["name"]) for each in vms] if isinstance(vms, tuple) else []
    names = [name for _, name in known]
    # In one go: what a VM is called is never taken for another one.
    found = {guid: name for guid, name in known if isinstance(name, str) and names.count(name) == 1}
    pattern = "|".join(map(re.escape, found))
    return re.sub(pattern, lambda guid: found[guid[0]], sentence) if found else sentence


def _not_judged(id_: Id, record: RunState, missing: MissingFact) -> NotJudged:
    touched = record.touched[id_]
    until = missing.missing.unavailable if isinstance(missing.missing, Unavailable) else None
    return NotJudged(touched.title, touched.resource, touched.key, describe_missing(missing), until)


class _Rollback(WorkingRun):
    """A run that goes back. given: consents of this call."""

    given: frozenset[str] = frozenset()
    outlook: RollbackOutlook

    def back(self) -> Outcome:
        self.settle(back=True)
        goals = self.go_back()
        outlook = self.outlook
        for sentence in outlook.kept:
            self.tell("kept", sentence)
        for lacks in outlook.missing:
            self.tell("note", f"{lacks.title}: not judged: {lacks.why}")
        checks = tuple(found for goal in goals for found in check(goal, self.host, describe_missing) if not found.holds)
        outcome = "not all rolled back" if checks or outlook.missing else "rolled back"
        if outlook.waiting and outcome == "rolled back":
            outcome = "partly rolled back"
        self.give_up(outlook.open | {identity(goal.resource, goal.key) for goal in goals}, outcome)
        if (self.record.outcome, self.record.waiting) != (outcome, outlook.waiting):
            self.write("outcome", outcome=outcome, waiting=plain(list(outlook.waiting)))
        host, following = self.record.host, _next(self.name, outlook)
        if outcome == "rolled back" and (others := waiting_for(self.name, host, self.context.store)):
            commands = ", then ".join(f"winhost rollback {run}" for run in others)
            following = f"What an earlier rollback kept for this run can be undone now: {commands}"
        return Outcome(
            self.name,
            host,
            outcome,
            self.changed,
            checks,
            outlook.kept,
            outlook.missing,
            outlook.waiting,
            following,
        )

    def later(self) -> LaterRuns:
        """Runs after this one, as this controller and the host know them now."""
        lines = [line for system in self.marked_systems(self.facts) for line in self.session.marks(system)]
        return later_runs(self.record, self.context.store, read_marks(lines))

    def goals_back(self, put_back: Set[Id]) -> Sequence[DesiredResource]:
        self.outlook = find_back(self.record, self.facts, self.later(), put_back)
        return self.outlook.desired

    def turn_of(self, goal: DesiredResource) -> Turn:
        return _turn(goal)

    def steps_back(self, goals: Sequence[DesiredResource]) -> tuple[Step, ...]:
        return _steps(goals, self.facts, self.record)

    def refuse_to_go_back(self, steps: Sequence[Step]) -> None:
        for sentence in self.outlook.along:
            self.tell("note", sentence)
        if lacking := self.lacking(steps, self.given):
            raise ConsentNeeded(self.record.host, self.name, lacking, True, self.record.going_back)

    def turn_back(self) -> None:
        if not self.record.going_back or self.given - self.record.accepted:
            # Consents given for going there are not consents for going back.
            self.write("back", accepted=sorted(self.given))


def _next(run: str, back: RollbackOutlook) -> str | None:
    """The condition that must hold first, and the commands in their order."""
    missing, again = back.missing, f"winhost rollback {run}"
    if not missing and not back.waiting:
        return None
    if not missing:
        commands = {name: f"winhost rollback {name}" for each in back.waiting for name in each.runs}
        commands |= {run.run: run.rollback for each in back.waiting for run in each.others}
        # Later runs begin with the latest, which nothing else waits for.
        first = [commands[name] for name in sorted(commands, key=lambda name: name.rpartition(".")[2], reverse=True)]
        return (
            f"Roll back the rest: {', then '.join([*first, again])}"
            if first
            else (f"Undo what came later, with the winhost that ran it or by hand; then: {again}")
        )
    first = sorted({lacks.until for lacks in missing if lacks.until})
    if not first:
        return f"Mend what could not be read, then go on with going back: {again}"
    return (
        f"Bring back {' and '.join(map(title_of, first))}, by hand or with a run, then go on with going back: {again}"
    )


def _turn(goal: DesiredResource) -> Turn:
    return turn_of(goal, RULES, RUNNING)


def _steps(desired: Sequence[DesiredResource], facts: Facts, record: RunState) -> tuple[Step, ...]:
    titles: Mapping[Id, str] = {id_: touched.title for id_, touched in record.touched.items()}
    return steps_for(desired, host_answers(facts), prefix="u", role="undo", backwards=True, titles=titles)
