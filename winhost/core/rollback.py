"""Decide what of a run is undone now, and which later runs the remaining changes wait for.

Later runs of the same controller are known by their journals, those of others by their marks on the host.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from enum import Enum

from .answers import HostAnswers, Id, MissingFact
from .changes import ChangedResource, Changes
from .conditions import consents_of
from .dataclass import dataclass
from .dependents import dependents_of
from .marks import Mark, MarkedRun, moved_since
from .rules import RESTART, ResourceRules
from .steps import Change, DesiredResource
from .undo import Verdicts, judge


@dataclass(frozen=True)
class LaterRuns:
    """runs: of this controller, oldest first; marks: on the host, oldest first, without those of runs of this
    controller that are rolled back or came before.
    """

    runs: tuple[Changes, ...] = ()
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Holders:
    """The later runs that something waits for: of this controller, and of others."""

    runs: tuple[str, ...] = ()
    others: tuple[MarkedRun, ...] = ()


@dataclass(frozen=True)
class Outlook:
    """The outcome of a rollback if it ran now. goals: what is restored; kept: what stays, and why; missing: what could
    not be decided; waiting: what of `kept` can be undone once newer resources are gone, and the later runs known to
    hold it.
    """

    goals: Mapping[Id, DesiredResource]
    kept: Mapping[Id, str]
    missing: Mapping[Id, MissingFact]
    waiting: Mapping[Id, Holders]

    @property
    def open(self) -> frozenset[Id]:
        """All that stays, so that the run still has something to undo."""
        return frozenset({*self.kept, *self.missing})


def outlook(record: Changes, host: HostAnswers, later: LaterRuns, put_back: Set[Id] = frozenset()) -> Outlook:
    """Decide by the journal of one run, the host's answers, and what is known of later runs. put_back: what this
    rollback has restored already.
    """
    verdicts = judge(record, host)
    held = _holders(record, verdicts, later, host, put_back)
    kept = {**verdicts.kept, **{id_: _why_waiting(verdicts.waiting.get(id_, ()), runs) for id_, runs in held.items()}}
    goals = {
        id_: DesiredResource(touched.resource, touched.key, back, touched.title, "As it was found.")
        for id_, touched in record.touched.items()
        if (back := verdicts.restored(id_))
    }
    in_order = {id_: kept[id_] for id_ in record.touched if id_ in kept}
    return Outlook(goals, in_order, verdicts.missing, {id_: held[id_] for id_ in in_order if id_ in held})


def _why_waiting(names: Sequence[str], held: Holders) -> str:
    runs = [*held.runs, *map(str, held.others)]
    if not runs:
        return f"for {', '.join(names)}, which came later; undo that, then do this again"
    by = f"run{'s' * (len(runs) > 1)} {', '.join(runs)}"
    came = f"for {', '.join(names)}, which came later with {by}" if names else f"changed since by {by}"
    return f"{came}; roll that back, then this again"


# ---- the order in which it goes back


class Turn(Enum):
    """When something is restored. FIRST is the choice of the running system, because only Windows can restore its own
    changes. LAST is what takes effect with a restart: without the Hyper-V role, no VM could get its settings back.
    """

    FIRST = 1
    NEXT = 2
    LAST = 3


def turn_of(goal: DesiredResource, rules: Mapping[str, ResourceRules], first: str = "") -> Turn:
    """Say when a goal goes back. first: the resource that has the first turn."""
    if goal.resource == first:
        return Turn.FIRST
    declared = rules[goal.resource]
    restarts = declared.restarts and RESTART in consents_of(declared.risks, Change(goal.key, {}, goal.desired))
    return Turn.LAST if restarts else Turn.NEXT


def in_turns(
    goals: Iterable[DesiredResource], turn: Callable[[DesiredResource], Turn]
) -> list[tuple[DesiredResource, ...]]:
    """Group the resources that are restored together, in the order of turns."""
    together = (tuple(goal for goal in goals if turn(goal) is each) for each in Turn)
    return [part for part in together if part]


# ---- which later runs hold it


def _holders(
    record: Changes, verdicts: Verdicts, later: LaterRuns, host: HostAnswers, put_back: Set[Id]
) -> Mapping[Id, Holders]:
    """Find the later runs that each resource waits for. One that waits for something without a run is left out."""
    direct = {id_: _holders_of(touched, id_, record, later, host) for id_, touched in record.touched.items()}
    found = {}
    for id_, names in verdicts.waiting.items():
        # A switch that is kept for a VM that is kept for a later run waits for that run, too.
        same = [other for other, theirs in verdicts.waiting.items() if set(names) & set(theirs)]
        found[id_] = _merged(direct[each] for each in (id_, *same))
    for id_, touched in record.touched.items():
        if id_ in record.restored or id_ in found:
            continue
        going = verdicts.restored(id_)
        marked = _later_by_marks(touched, touched.original.keys() - going.keys(), record, later, host)
        known = () if going or id_ in put_back else _later_by_journals(touched, id_, later.runs)
        if (held := _merged((Holders(known), marked))) != Holders():
            found[id_] = held
    return found


def _holders_of(touched: ChangedResource, id_: Id, record: Changes, later: LaterRuns, host: HostAnswers) -> Holders:
    dependents: set[Id] = set()
    with suppress(MissingFact):  # its names say what it waits for
        dependents = set(dependents_of(touched.resource, touched.key, host))
    known = tuple(
        run.run
        for run in later.runs
        if run.run in _later_by_journals(touched, id_, later.runs) or dependents & (run.touched.keys() - run.restored)
    )
    first = next((at for at, mark in enumerate(later.marks) if mark.run.id == record.id), 0)
    marked = [each.run for each in later.marks[first:] if each.run.id != record.id and each.resource in dependents]
    moved = _later_by_marks(touched, touched.original, record, later, host)
    return _merged((Holders(known), moved, _split(marked, later)))


def _later_by_journals(touched: ChangedResource, id_: Id, later: Sequence[Changes]) -> tuple[str, ...]:
    """The later runs whose rollback would restore a property to what this run left, not to what it found."""
    found = []
    for run in later:
        theirs = run.touched.get(id_)
        if theirs is None or theirs.is_restored or id_ in run.restored:
            continue
        if any(touched.original.get(name, value) != value for name, value in theirs.original.items()):
            found.append(run.run)
    return tuple(found)


def _later_by_marks(
    touched: ChangedResource, names: Iterable[str], record: Changes, later: LaterRuns, host: HostAnswers
) -> Holders:
    """The later runs that changed it, by marks on the host and its present state."""
    try:
        now = host.state_of(touched.resource, touched.key)
    except MissingFact:
        return Holders()
    return _split(moved_since(touched, names, later.marks, record.id, now) if now else (), later)


def _split(runs: Iterable[MarkedRun], later: LaterRuns) -> Holders:
    """Split runs into those of this controller and others."""
    here = {run.id: run.run for run in later.runs}
    found = list(runs)
    return Holders(
        tuple(here[run.id] for run in found if run.id in here), tuple(run for run in found if run.id not in here)
    )


def _merged(found: Iterable[Holders]) -> Holders:
    parts = list(found)
    return Holders(
        tuple(dict.fromkeys(run for part in parts for run in part.runs)),
        tuple(dict.fromkeys(run for part in parts for run in part.others)),
    )
