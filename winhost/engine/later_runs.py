"""Runs that came after one and still stand: what they hold of it can be undone only after them.

Those of this controller are known by their journals, those of others by their marks on the host.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress

from winhost.core.answers import Id, MissingFact
from winhost.core.came_since import Verdicts
from winhost.core.changes import ChangedResource
from winhost.core.dataclass import dataclass
from winhost.core.dependents import resting
from winhost.core.host_answers import HostAnswers
from winhost.core.marks import Mark, MarkedRun, moved_since
from winhost.engine.journal import read_journal
from winhost.engine.run_state import RunState, id_of, replay
from winhost.engine.store import Store
from winhost.model.errors import WinhostError


@dataclass(frozen=True)
class LaterRuns:
    """runs: of this controller, oldest first; marks: on the host, oldest first, without those of runs of this
    controller that are rolled back or came before.
    """

    runs: tuple[RunState, ...] = ()
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Holders:
    """The later runs that something waits for: of this controller, and of others."""

    runs: tuple[str, ...] = ()
    others: tuple[MarkedRun, ...] = ()


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


def holders(
    record: RunState, verdicts: Verdicts, later: LaterRuns, host: HostAnswers, put_back: Set[Id] = frozenset()
) -> Mapping[Id, Holders]:
    """For each resource the later runs that it waits for. Those that only the host shows have none.

    put_back: what this rollback has put back already, over what later runs had left.
    """
    direct = {id_: _holders_of(touched, id_, record, later, host) for id_, touched in record.touched.items()}
    found = {}
    for id_, names in verdicts.waiting.items():
        # A switch that is kept for a VM that is kept for a later run waits for that run, too.
        same = [other for other, theirs in verdicts.waiting.items() if set(names) & set(theirs)]
        found[id_] = _joined(direct[each] for each in (id_, *same))
    for id_, touched in record.touched.items():
        if id_ in record.restored or id_ in found:
            continue
        going = verdicts.rests(id_)
        marked = _that_marked_it(touched, touched.original.keys() - going.keys(), record, later, host)
        known = () if going or id_ in put_back else _that_changed_it(touched, id_, later.runs)
        if (held := _joined((Holders(known), marked))) != Holders():
            found[id_] = held
    return found


def _holders_of(touched: ChangedResource, id_: Id, record: RunState, later: LaterRuns, host: HostAnswers) -> Holders:
    dependents: set[Id] = set()
    with suppress(MissingFact):  # its names say what it waits for
        dependents = set(resting(touched.resource, touched.key, host))
    known = tuple(
        run.run
        for run in later.runs
        if run.run in _that_changed_it(touched, id_, later.runs) or dependents & (run.touched.keys() - run.restored)
    )
    first = next((at for at, mark in enumerate(later.marks) if mark.run.id == record.id), 0)
    marked = [each.run for each in later.marks[first:] if each.run.id != record.id and each.resource in dependents]
    moved = _that_marked_it(touched, touched.original, record, later, host)
    return _joined((Holders(known), moved, _split(marked, later)))


def _that_changed_it(touched: ChangedResource, id_: Id, later: Sequence[RunState]) -> tuple[str, ...]:
    """Going back, they put a property where this run left it, and not as this run found it."""
    return tuple(run.run for run in later if id_ not in run.restored and _moves(run.touched.get(id_), touched))


def _moves(later: ChangedResource | None, touched: ChangedResource) -> bool:
    if later is None or later.is_restored:
        return False
    return any(touched.original.get(name, value) != value for name, value in later.original.items())


def _that_marked_it(
    touched: ChangedResource, names: Iterable[str], record: RunState, later: LaterRuns, host: HostAnswers
) -> Holders:
    """The same, by what the host shows now and by marks."""
    try:
        now = host.state_of(touched.resource, touched.key)
    except MissingFact:
        return Holders()
    return _split(moved_since(touched, names, later.marks, record.id, now) if now else (), later)


def _split(runs: Iterable[MarkedRun], later: LaterRuns) -> Holders:
    """Those of this controller, and the others."""
    here = {run.id: run.run for run in later.runs}
    found = list(runs)
    return Holders(
        tuple(here[run.id] for run in found if run.id in here), tuple(run for run in found if run.id not in here)
    )


def _joined(found: Iterable[Holders]) -> Holders:
    parts = list(found)
    return Holders(
        tuple(dict.fromkeys(run for part in parts for run in part.runs)),
        tuple(dict.fromkeys(run for part in parts for run in part.others)),
    )


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
