"""Decide which changes of a run are undone now, and which later runs the remaining changes wait for.

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
from .marks import Mark, MarkedRun, find_later_runs
from .rules import RESTART, ResourceRules
from .steps import Change, DesiredResource
from .undo import Verdicts, judge


@dataclass(frozen=True)
class LaterRuns:
    """The later runs on a host. runs: of this controller, oldest first; marks: on the host, oldest first, except those
    of this controller's runs that are rolled back or earlier.
    """

    runs: tuple[Changes, ...] = ()
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class BlockingRuns:
    """The later runs that must be rolled back before a resource: of this controller, and of others."""

    runs: tuple[str, ...] = ()
    others: tuple[MarkedRun, ...] = ()


@dataclass(frozen=True)
class Outlook:
    """The outcome of a rollback if it ran now. goals: resources to restore; kept: resources that stay, and why;
    missing: resources that could not be decided; waiting: those of `kept` that can be undone once newer resources are
    removed, with the later runs that are known to block them.
    """

    goals: Mapping[Id, DesiredResource]
    kept: Mapping[Id, str]
    missing: Mapping[Id, MissingFact]
    waiting: Mapping[Id, BlockingRuns]

    @property
    def open(self) -> frozenset[Id]:
        """The resources that stay, so that the run still has something to undo."""
        return frozenset({*self.kept, *self.missing})


def outlook(record: Changes, host: HostAnswers, later: LaterRuns, restored: Set[Id] = frozenset()) -> Outlook:
    """Decide by the journal of one run, the host's answers and the known later runs. restored: resources that this
    rollback has restored already.
    """
    verdicts = judge(record, host)
    blocking = _find_blocking_runs(record, verdicts, later, host, restored)
    kept = {
        **verdicts.kept,
        **{id_: _waiting_reason(verdicts.waiting.get(id_, ()), runs) for id_, runs in blocking.items()},
    }
    goals = {
        id_: DesiredResource(touched.resource, touched.key, back, touched.title, "As it was found.")
        for id_, touched in record.touched.items()
        if (back := verdicts.restored(id_))
    }
    in_order = {id_: kept[id_] for id_ in record.touched if id_ in kept}
    return Outlook(goals, in_order, verdicts.missing, {id_: blocking[id_] for id_ in in_order if id_ in blocking})


def _waiting_reason(names: Sequence[str], blocking: BlockingRuns) -> str:
    runs = [*blocking.runs, *map(str, blocking.others)]
    if not runs:
        return f"for {', '.join(names)}, which came later; undo that, then do this again"
    by = f"run{'s' * (len(runs) > 1)} {', '.join(runs)}"
    came = f"for {', '.join(names)}, which came later with {by}" if names else f"changed since by {by}"
    return f"{came}; roll that back, then this again"


# ---- the order of a rollback


class Turn(Enum):
    """The time at which a resource is restored. FIRST is the choice of the running system, because only Windows can
    restore changes of Windows. LAST are changes that take effect with a restart: without the Hyper-V role, the settings
    of VMs could not be restored.
    """

    FIRST = 1
    NEXT = 2
    LAST = 3


def turn_of(goal: DesiredResource, rules: Mapping[str, ResourceRules], first: str = "") -> Turn:
    """Return the turn in which a goal is restored. first: the resource that has the first turn."""
    if goal.resource == first:
        return Turn.FIRST
    declared = rules[goal.resource]
    restarts = declared.restarts and RESTART in consents_of(declared.risks, Change(goal.key, {}, goal.desired))
    return Turn.LAST if restarts else Turn.NEXT


def group_by_turn(
    goals: Iterable[DesiredResource], turn: Callable[[DesiredResource], Turn]
) -> list[tuple[DesiredResource, ...]]:
    """Group the goals that are restored together, in the order of turns."""
    together = (tuple(goal for goal in goals if turn(goal) is each) for each in Turn)
    return [part for part in together if part]


# ---- later runs that block a resource


def _find_blocking_runs(
    record: Changes, verdicts: Verdicts, later: LaterRuns, host: HostAnswers, restored: Set[Id]
) -> Mapping[Id, BlockingRuns]:
    """Find the later runs that block each resource. A resource that waits only for changes of people is left out."""
    direct = {id_: _blocking_runs_of(touched, id_, record, later, host) for id_, touched in record.touched.items()}
    blocking_runs = {}
    for id_, names in verdicts.waiting.items():
        # A switch that is kept for a VM, which is kept for a later run, waits for that run too.
        sharing = [other for other, theirs in verdicts.waiting.items() if set(names) & set(theirs)]
        blocking_runs[id_] = _merge(direct[each] for each in (id_, *sharing))
    for id_, touched in record.touched.items():
        if id_ in record.restored or id_ in blocking_runs:
            continue
        to_restore = verdicts.restored(id_)
        marked = _later_by_marks(touched, touched.original.keys() - to_restore.keys(), record, later, host)
        known = () if to_restore or id_ in restored else _later_by_journals(touched, id_, later.runs)
        if (blocking := _merge((BlockingRuns(known), marked))) != BlockingRuns():
            blocking_runs[id_] = blocking
    return blocking_runs


def _blocking_runs_of(
    touched: ChangedResource, id_: Id, record: Changes, later: LaterRuns, host: HostAnswers
) -> BlockingRuns:
    dependents: set[Id] = set()
    with suppress(MissingFact):  # the reason names them without their runs
        dependents = set(dependents_of(touched.resource, touched.key, host))
    known = tuple(
        run.run
        for run in later.runs
        if run.run in _later_by_journals(touched, id_, later.runs) or dependents & (run.touched.keys() - run.restored)
    )
    own_position = next((position for position, mark in enumerate(later.marks) if mark.run.id == record.id), 0)
    marked = [
        each.run for each in later.marks[own_position:] if each.run.id != record.id and each.resource in dependents
    ]
    moved = _later_by_marks(touched, touched.original, record, later, host)
    return _merge((BlockingRuns(known), moved, _split_by_controller(marked, later)))


def _later_by_journals(touched: ChangedResource, id_: Id, later: Sequence[Changes]) -> tuple[str, ...]:
    """Return the later runs whose rollback would restore a property to a value of this run, not to the one
    before it.
    """
    names = []
    for run in later:
        theirs = run.touched.get(id_)
        if theirs is None or theirs.is_restored or id_ in run.restored:
            continue
        if any(touched.original.get(name, value) != value for name, value in theirs.original.items()):
            names.append(run.run)
    return tuple(names)


def _later_by_marks(
    touched: ChangedResource, names: Iterable[str], record: Changes, later: LaterRuns, host: HostAnswers
) -> BlockingRuns:
    """Return the later runs that changed the resource, by marks on the host and its present state."""
    try:
        now = host.state_of(touched.resource, touched.key)
    except MissingFact:
        return BlockingRuns()
    return _split_by_controller(find_later_runs(touched, names, later.marks, record.id, now) if now else (), later)


def _split_by_controller(runs: Iterable[MarkedRun], later: LaterRuns) -> BlockingRuns:
    """Split runs into those of this controller and others."""
    own_names = {run.id: run.run for run in later.runs}
    all_runs = list(runs)
    return BlockingRuns(
        tuple(own_names[run.id] for run in all_runs if run.id in own_names),
        tuple(run for run in all_runs if run.id not in own_names),
    )


def _merge(groups: Iterable[BlockingRuns]) -> BlockingRuns:
    all_groups = list(groups)
    return BlockingRuns(
        tuple(dict.fromkeys(run for part in all_groups for run in part.runs)),
        tuple(dict.fromkeys(run for part in all_groups for run in part.others)),
    )
