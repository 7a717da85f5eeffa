"""Going back: undo exactly what a run changed, in reverse, and keep what others now use."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from functools import partial

from winhost.core.answers import Id, MissingFact, Unavailable, identity
from winhost.core.came_since import Verdicts, judge
from winhost.core.checks import Check, check
from winhost.core.dataclass import dataclass
from winhost.core.marks import read_marks
from winhost.core.requirements import consents_of
from winhost.core.rules import RESTART
from winhost.core.steps import Change, DesiredResource, Step
from winhost.engine.endings import reaching
from winhost.engine.events import Waiting
from winhost.engine.failures import ConsentNeeded
from winhost.engine.host_steps import steps_on
from winhost.engine.later_runs import Holders, LaterRuns, holders, later_runs, waiting_for
from winhost.engine.open_run import OpenRun
from winhost.engine.run_context import NotJudged, Outcome, RunContext
from winhost.engine.run_state import RunState
from winhost.engine.run_steps import do, settle
from winhost.model.documents import plain
from winhost.model.facts import Facts
from winhost.model.plan import in_order
from winhost.resources.registry import LINUX, RULES, answer, host_answers, titled, unread
from winhost.resources.shared import RUNNING, WITHIN_PARTITION, WITHIN_VM

_MOST_ALONG = 6  # titles in one sentence
_HOLD_LINUX = (WITHIN_VM.resource, WITHIN_PARTITION.resource)


@dataclass(frozen=True)
class RollbackOutlook:
    """What going back means now: what is to be put back, what is kept and why, and what cannot be judged. open: all
    that stays for that, or for others; along: what needs no step because it goes with its VM, in a sentence;
    waiting: what of `kept` goes back once what came later is taken back.
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
        runner = OpenRun(run, context)
        with reaching(runner):
            return _back(runner, frozenset(accepted))


def look(run: str, context: RunContext) -> tuple[tuple[Step, ...], RollbackOutlook, Facts]:
    """The same as `preview`, of the host as it is now, with its facts. Changes nothing."""
    with context.store.lock(context.connector.host, f"rollback {run}"):
        runner = OpenRun(run, context)
        with reaching(runner, looking=True):
            runner.session.reach()
            facts = runner.seen()
            return *preview(runner.record, facts, _later(runner, facts)), facts


def preview(record: RunState, facts: Facts, later: LaterRuns) -> tuple[tuple[Step, ...], RollbackOutlook]:
    """What rollback would do now, what it would keep, and what it cannot tell."""
    back = find_back(record, facts, later)
    return tuple(step for part in _parts(back.desired) for step in _steps(part, facts, record)), back


def find_back(record: RunState, facts: Facts, later: LaterRuns, put_back: Set[Id] = frozenset()) -> RollbackOutlook:
    """By the journal of one run, what the host shows of all others, and what is known of later runs."""
    host = host_answers(facts)
    verdicts = judge(record, host)
    held = holders(record, verdicts, later, host, put_back)
    kept = {**verdicts.kept, **{id_: _why_waiting(verdicts.waiting.get(id_, ()), runs) for id_, runs in held.items()}}
    kept = {id_: _with_names(kept[id_], facts) for id_ in record.touched if id_ in kept}
    going = [id_ for id_ in record.touched if verdicts.rests(id_)]
    inside = [id_ for id_ in going if id_[0] in LINUX] if any(map(partial(_takes_linux, verdicts), going)) else []
    return RollbackOutlook(
        tuple(_desired(id_, verdicts, record) for id_ in going if id_ not in inside),
        tuple(f"{record.touched[id_].title}: kept: {why}" for id_, why in kept.items()),
        tuple(_not_judged(id_, record, missing) for id_, missing in verdicts.missing.items()),
        frozenset({*kept, *verdicts.missing}),
        tuple(_along([record.touched[id_].title for id_ in inside])),
        tuple(
            Waiting(record.touched[id_].title, kept[id_], held[id_].runs, held[id_].others)
            for id_ in kept
            if id_ in held
        ),
    )


def _why_waiting(names: Sequence[str], held: Holders) -> str:
    runs = [*held.runs, *map(str, held.others)]
    if not runs:
        return f"for {', '.join(names)}, which came since; take that back, then this again"
    by = f"run{'s' * (len(runs) > 1)} {', '.join(runs)}"
    came = f"for {', '.join(names)}, which came since with {by}" if names else f"changed since by {by}"
    return f"{came}; roll that back, then this again"


def _takes_linux(verdicts: Verdicts, id_: Id) -> bool:
    """The VM or the partition of this run goes, and with it its Linux, whatever was changed in that."""
    return id_[0] in _HOLD_LINUX and verdicts.rests(id_).get("made") is False


def _along(titles: Sequence[str]) -> Iterator[str]:
    if titles:
        told = [*dict.fromkeys(titles)]
        rest = f" and {len(told) - _MOST_ALONG} more" if len(told) > _MOST_ALONG else ""
        yield f"not undone, because it goes with its Linux: {'; '.join(told[:_MOST_ALONG])}{rest}"


def _desired(id_: Id, verdicts: Verdicts, record: RunState) -> DesiredResource:
    touched = record.touched[id_]
    return DesiredResource(touched.resource, touched.key, verdicts.rests(id_), touched.title, "As it was found.")


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
    return NotJudged(touched.title, touched.resource, touched.key, unread(missing), until)


def _back(runner: OpenRun, accepted: frozenset[str]) -> Outcome:
    facts = settle(runner, back=True)
    back = find_back(runner.record, facts, _later(runner, facts))
    for sentence in back.along:
        runner.tell("note", sentence)
    _ask_first(runner, back.desired, facts, accepted)
    if not runner.record.going_back or accepted - runner.record.accepted:
        # Consents given for going there are not consents for going back.
        runner.write("back", accepted=sorted(accepted))
    put_back: set[Id] = set()
    for turn in Turn:
        tried: set[Id] = set()
        # What goes back may free what was kept for it, such as the switch that a distro of this run was bridged to.
        while part := _untried(back.desired, turn, tried):
            tried |= {identity(goal.resource, goal.key) for goal in part}
            put_back |= tried
            do(runner, _steps(part, facts, runner.record), facts)
            facts = runner.read()
            back = find_back(runner.record, facts, _later(runner, facts), put_back)
    return _outcome(runner, back, facts)


def _later(runner: OpenRun, facts: Facts) -> LaterRuns:
    lines = [line for system in runner.marked_systems(facts) for line in runner.session.marks(system)]
    return later_runs(runner.record, runner.context.store, read_marks(lines))


def _untried(desired: tuple[DesiredResource, ...], turn: "Turn", tried: Set[Id]) -> tuple[DesiredResource, ...]:
    return tuple(w for w in desired if _turn(w) is turn and identity(w.resource, w.key) not in tried)


def _outcome(runner: OpenRun, back: RollbackOutlook, facts: Facts) -> Outcome:
    for sentence in back.kept:
        runner.tell("kept", sentence)
    for lacks in back.missing:
        runner.tell("note", f"{lacks.title}: not judged: {lacks.why}")
    checks = tuple(_left_to_undo(back.desired, facts))
    outcome = "not all rolled back" if checks or back.missing else "rolled back"
    if back.waiting and outcome == "rolled back":
        outcome = "partly rolled back"
    still = back.open | {identity(w.resource, w.key) for w in back.desired}
    given = {id_: touched for id_, touched in runner.record.touched.items() if id_ not in still}
    if runner.record.restored != given.keys():
        runner.write("restored", resources=[{"resource": t.resource, "key": dict(t.key)} for t in given.values()])
    runner.forget(facts, () if outcome == "rolled back" else still)
    if (runner.record.outcome, runner.record.waiting) != (outcome, back.waiting):
        runner.write("outcome", outcome=outcome, waiting=plain(list(back.waiting)))
    host = runner.record.host
    others = waiting_for(runner.name, host, runner.context.store) if outcome == "rolled back" else ()
    next_ = _next_of_others(others) or _next(runner.name, back)
    return Outcome(runner.name, host, outcome, runner.changed, checks, back.kept, back.missing, back.waiting, next_)


def _next(run: str, back: RollbackOutlook) -> str | None:
    """What must be so first, and the commands in their order."""
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
            else (f"Take back what came since, with the winhost that ran it or by hand; then: {again}")
        )
    first = sorted({lacks.until for lacks in missing if lacks.until})
    if not first:
        return f"Mend what could not be read, then go on with going back: {again}"
    return f"Bring back {' and '.join(map(titled, first))}, by hand or with a run, then go on with going back: {again}"


def _next_of_others(runs: Sequence[str]) -> str | None:
    if not runs:
        return None
    commands = ", then ".join(f"winhost rollback {run}" for run in runs)
    return f"What an earlier rollback kept for this run can be undone now: {commands}"


def _ask_first(runner: OpenRun, desired: tuple[DesiredResource, ...], facts: Facts, accepted: frozenset[str]) -> None:
    """All consents before the first step back, so that a refusal leaves the run as it was."""
    needed = in_order(
        risk for part in _parts(desired) for step in _steps(part, facts, runner.record) for risk in step.risks
    )
    lacking = tuple(risk for risk in needed if risk not in accepted)
    if lacking:
        raise ConsentNeeded(runner.record.host, runner.name, lacking, True, runner.record.going_back)


def _left_to_undo(desired: tuple[DesiredResource, ...], facts: Facts) -> Iterator[Check]:
    return (found for goal in desired for found in check(goal, host_answers(facts), unread) if not found.holds)


def _parts(desired: tuple[DesiredResource, ...]) -> list[tuple[DesiredResource, ...]]:
    return [part for turn in Turn if (part := tuple(goal for goal in desired if _turn(goal) is turn))]


class Turn(Enum):
    """When something goes back. The system that runs first: only Windows can give back what it changed. What takes
    effect with a restart last: without the role there would be no VM left to give its settings back to.
    """

    FIRST = 1
    NEXT = 2
    LAST = 3


def _turn(goal: DesiredResource) -> Turn:
    if goal.resource == RUNNING:
        return Turn.FIRST
    rules = RULES[goal.resource]
    restarts = rules.restarts and RESTART in consents_of(rules.risks, Change(goal.key, {}, goal.desired))
    return Turn.LAST if restarts else Turn.NEXT


def _steps(desired: tuple[DesiredResource, ...], facts: Facts, record: RunState) -> tuple[Step, ...]:
    titles: Mapping[Id, str] = {id_: touched.title for id_, touched in record.touched.items()}
    return steps_on(facts, desired, prefix="u", role="undo", backwards=True, titles=titles)
