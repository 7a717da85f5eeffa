"""Roll back a run: undo exactly its changes, in reverse order, and keep resources that others and later runs use."""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress

from winhost.core.answers import Id, MissingFact, Unavailable, identity
from winhost.core.checks import check
from winhost.core.dataclass import dataclass
from winhost.core.marks import Mark, MarkedRun, read_marks
from winhost.core.order import steps_for
from winhost.core.rollback import LaterRuns, Turn, group_by_turn, outlook, turn_of
from winhost.core.steps import DesiredResource, Step
from winhost.engine.events import Waiting
from winhost.engine.failures import ConsentNeeded
from winhost.engine.journal import read_journal
from winhost.engine.run_context import Outcome, RunContext, Undecided
from winhost.engine.run_state import RunState, id_of, replay
from winhost.engine.run_steps import WorkingRun
from winhost.engine.store import Store
from winhost.model.documents import plain
from winhost.model.errors import WinhostError
from winhost.model.facts import Facts
from winhost.resources.registry import LINUX, RULES, answer, describe_missing, host_answers, title_of
from winhost.resources.shared import RUNNING, WITHIN_PARTITION, WITHIN_VM


def later_runs(record: RunState, store: Store, marks: Sequence[Mark] = ()) -> LaterRuns:
    """Find the later runs on the same machine that are not rolled back."""
    names = store.runs_of(record.host)
    runs = tuple(
        later
        for name in names[names.index(record.run) + 1 if record.run in names else 0 :]
        if (later := _replay_if_readable(name, store)) and later.plan.machine_id == record.plan.machine_id
        if later.outcome != "rolled back" and not later.unchanged
    )
    known_ids = {record.id, *(run.id for run in runs)}
    undone_or_earlier = {
        run for run in {mark.run for mark in marks} if run.id not in known_ids and _is_own_run(run, store)
    }
    return LaterRuns(runs, tuple(mark for mark in marks if mark.run not in undone_or_earlier))


def waiting_for(run: str, host: str, store: Store) -> tuple[str, ...]:
    """Return partly rolled back runs that keep a resource for this one, newest first: they can continue in that
    order.
    """
    others = [name for name in store.runs_of(host) if name != run]
    records = [record for name in others if (record := _replay_if_readable(name, store)) and record.waiting]
    return tuple(record.run for record in reversed(records) if any(run in each.runs for each in record.waiting))


def _is_own_run(run: MarkedRun, store: Store) -> bool:
    """Tell whether the journal of the run is on this computer."""
    with suppress(WinhostError):
        lines = read_journal(store.existing_journal(run.run))
        return bool(lines) and id_of(lines) == run.id
    return False


def _replay_if_readable(run: str, store: Store) -> RunState | None:
    try:
        return replay(run, read_journal(store.existing_journal(run)))
    except WinhostError:
        return None  # it cannot be resumed either


_MAX_TITLES = 6  # titles in one sentence
_HOLD_LINUX = (WITHIN_VM.resource, WITHIN_PARTITION.resource)


@dataclass(frozen=True)
class RollbackOutlook:
    """The outcome of a rollback if it ran now. desired: states to restore; kept: sentences about resources that stay,
    and why; missing: resources that cannot be decided; open: the ids of both; removed_with_parent: sentences about
    resources that are removed with their VM, without a step; waiting: those of `kept` that can be undone once newer
    changes are.
    """

    desired: tuple[DesiredResource, ...]
    kept: tuple[str, ...]
    missing: tuple[Undecided, ...]
    open: frozenset[Id]
    removed_with_parent: tuple[str, ...] = ()
    waiting: tuple[Waiting, ...] = ()


def rollback(run: str, accepted: Iterable[str], context: RunContext) -> Outcome:
    """Undo the changes of a run. Safe to repeat: changes that are undone already are skipped. Raises ConsentNeeded
    before the first step.
    """
    with context.store.lock(context.connector.host, f"rollback {run}"):
        runner = _Rollback(run, context)
        runner.consents_given = frozenset(accepted)
        with runner.connected():
            return runner.roll_back_run()


def preview_on_host(run: str, context: RunContext) -> tuple[tuple[Step, ...], RollbackOutlook, Facts]:
    """Read the host, and return the result of `preview` and the facts. Changes nothing."""
    with context.store.lock(context.connector.host, f"rollback {run}"):
        runner = _Rollback(run, context)
        with runner.connected(is_preview=True):
            runner.session.wait_until_reachable()
            facts = runner.read_planned_host()
            return *preview(runner.record, facts, runner.find_later_runs()), facts


def preview(record: RunState, facts: Facts, later: LaterRuns) -> tuple[tuple[Step, ...], RollbackOutlook]:
    """Return the steps that a rollback would run now, and its outlook."""
    back = decide_rollback(record, facts, later)
    return tuple(step for part in group_by_turn(back.desired, _turn) for step in _steps(part, facts, record)), back


def decide_rollback(
    record: RunState, facts: Facts, later: LaterRuns, restored: Set[Id] = frozenset()
) -> RollbackOutlook:
    """Decide what can be undone now, and what stays. restored: resources that this rollback has restored already."""
    found = outlook(record, host_answers(facts), later, restored)
    kept = {id_: _name_vms(why, facts) for id_, why in found.kept.items()}
    # If the VM or the partition of this run is removed, its Linux is removed with it, with all changes in that.
    is_linux_removed = any(
        goal.resource in _HOLD_LINUX and goal.desired.get("made") is False for goal in found.goals.values()
    )
    inside = [id_ for id_ in found.goals if is_linux_removed and id_[0] in LINUX]
    titles, sentence = list(dict.fromkeys(record.touched[id_].title for id_ in inside)), ""
    if titles:
        sentence = f"not undone, because it goes with its Linux: {'; '.join(titles[:_MAX_TITLES])}"
        sentence += f" and {len(titles) - _MAX_TITLES} more" if len(titles) > _MAX_TITLES else ""
    return RollbackOutlook(
        tuple(goal for id_, goal in found.goals.items() if id_ not in inside),
        tuple(f"{record.touched[id_].title}: kept: {why}" for id_, why in kept.items()),
        tuple(_undecided(id_, record, missing) for id_, missing in found.missing.items()),
        found.open,
        (sentence,) if sentence else (),
        tuple(
            Waiting(record.touched[id_].title, kept[id_], blocking.runs, blocking.others)
            for id_, blocking in found.waiting.items()
        ),
    )


def _name_vms(sentence: str, facts: Facts) -> str:
    """Replace the GUIDs of VMs by their names, if the names are known and unique."""
    vms = answer(facts, "Vm")
    known = [(each.key["vm"], each.state["name"]) for each in vms] if isinstance(vms, tuple) else []
    names = [name for _, name in known]
    # In one substitution, so that a name is never replaced again.
    names_by_guid = {guid: name for guid, name in known if isinstance(name, str) and names.count(name) == 1}
    pattern = "|".join(map(re.escape, names_by_guid))
    return re.sub(pattern, lambda guid: names_by_guid[guid[0]], sentence) if names_by_guid else sentence


def _undecided(id_: Id, record: RunState, missing: MissingFact) -> Undecided:
    touched = record.touched[id_]
    until = missing.missing.unavailable if isinstance(missing.missing, Unavailable) else None
    return Undecided(touched.title, touched.resource, touched.key, describe_missing(missing), until)


class _Rollback(WorkingRun):
    """A rollback in progress. consents_given: to this call."""

    consents_given: frozenset[str] = frozenset()
    outlook: RollbackOutlook

    def roll_back_run(self) -> Outcome:
        self.wait_until_settled(rolling_back=True)
        goals = self.roll_back()
        outlook = self.outlook
        for sentence in outlook.kept:
            self.report("kept", sentence)
        for undecided in outlook.missing:
            self.report("note", f"{undecided.title}: not judged: {undecided.why}")
        checks = tuple(
            checked for goal in goals for checked in check(goal, self.host, describe_missing) if not checked.holds
        )
        outcome = "not all rolled back" if checks or outlook.missing else "rolled back"
        if outlook.waiting and outcome == "rolled back":
            outcome = "partly rolled back"
        self.finish_rollback(outlook.open | {identity(goal.resource, goal.key) for goal in goals}, outcome)
        if (self.record.outcome, self.record.waiting) != (outcome, outlook.waiting):
            self.write("outcome", outcome=outcome, waiting=plain(list(outlook.waiting)))
        host, instruction = self.record.host, _next_instruction(self.name, outlook)
        if outcome == "rolled back" and (waiting := waiting_for(self.name, host, self.context.store)):
            commands = ", then ".join(f"winhost rollback {run}" for run in waiting)
            instruction = f"What an earlier rollback kept for this run can be undone now: {commands}"
        return Outcome(
            self.name, host, outcome, self.changed, checks, outlook.kept, outlook.missing, outlook.waiting, instruction
        )

    def find_later_runs(self) -> LaterRuns:
        """Find the later runs by the journals of this controller and the marks on the host."""
        lines = [line for system in self.marked_systems(self.facts) for line in self.session.marks(system)]
        return later_runs(self.record, self.context.store, read_marks(lines))

    def rollback_goals(self, restored: Set[Id]) -> Sequence[DesiredResource]:
        self.outlook = decide_rollback(self.record, self.facts, self.find_later_runs(), restored)
        return self.outlook.desired

    def turn_of(self, goal: DesiredResource) -> Turn:
        return _turn(goal)

    def rollback_steps(self, goals: Sequence[DesiredResource]) -> tuple[Step, ...]:
        return _steps(goals, self.facts, self.record)

    def require_rollback_consents(self, steps: Sequence[Step]) -> None:
        for sentence in self.outlook.removed_with_parent:
            self.report("note", sentence)
        if missing := self.missing_consents(steps, self.consents_given):
            raise ConsentNeeded(self.record.host, self.name, missing, True, self.record.going_back)

    def start_rollback(self) -> None:
        if not self.record.going_back or self.consents_given - self.record.accepted:
            # Consents for applying a plan are not consents for its rollback.
            self.write("back", accepted=sorted(self.consents_given))


def _next_instruction(run: str, back: RollbackOutlook) -> str | None:
    """Return the instruction for what remains: what has to be done first, then the command. None if nothing remains."""
    missing, command = back.missing, f"winhost rollback {run}"
    if not missing and not back.waiting:
        return None
    if not missing:
        commands = {name: f"winhost rollback {name}" for each in back.waiting for name in each.runs}
        commands |= {run.run: run.rollback for each in back.waiting for run in each.others}
        # The latest run comes first, because no other run blocks it.
        first = [commands[name] for name in sorted(commands, key=lambda name: name.rpartition(".")[2], reverse=True)]
        return (
            f"Roll back the remaining changes: {', then '.join([*first, command])}"
            if first
            else (f"Undo what came later, with the winhost that ran it or by hand; then: {command}")
        )
    first = sorted({undecided.until for undecided in missing if undecided.until})
    if not first:
        return f"Repair what could not be read, then continue the rollback: {command}"
    return f"Restore {' and '.join(map(title_of, first))}, by hand or with a run, then continue the rollback: {command}"


def _turn(goal: DesiredResource) -> Turn:
    return turn_of(goal, RULES, RUNNING)


def _steps(desired: Sequence[DesiredResource], facts: Facts, record: RunState) -> tuple[Step, ...]:
    titles: Mapping[Id, str] = {id_: touched.title for id_, touched in record.touched.items()}
    return steps_for(desired, host_answers(facts), prefix="u", role="undo", backwards=True, titles=titles)
