"""Runs of this controller that came after one and still stand: what they hold of it can be undone only after them."""

from collections.abc import Mapping, Sequence, Set
from contextlib import suppress

from winhost.core.answers import Id, MissingFact
from winhost.core.came_since import Verdicts
from winhost.core.changes import ChangedResource
from winhost.core.dependents import resting
from winhost.core.host_answers import HostAnswers
from winhost.engine.journal import read_journal
from winhost.engine.run_state import RunState, replay
from winhost.engine.store import Store
from winhost.model.errors import WinhostError


def later_runs(record: RunState, store: Store) -> tuple[RunState, ...]:
    """Later runs on the same machine that are not rolled back, oldest first."""
    names = store.runs_of(record.host)
    return tuple(
        later
        for name in names[names.index(record.run) + 1 if record.run in names else 0 :]
        if (later := _replayed(name, store)) and later.plan.machine_id == record.plan.machine_id
        if later.outcome != "rolled back" and not later.unchanged
    )


def waiting_for(run: str, host: str, store: Store) -> tuple[str, ...]:
    """Partly rolled back runs that keep something for this one, newest first: the order in which they can go on."""
    partly = [record for name in store.runs_of(host) if (record := _replayed(name, store)) and record.waiting]
    return tuple(record.run for record in reversed(partly) if any(run in each.runs for each in record.waiting))


def holders(
    record: RunState, verdicts: Verdicts, later: Sequence[RunState], host: HostAnswers, put_back: Set[Id] = frozenset()
) -> Mapping[Id, tuple[str, ...]]:
    """For each resource the later runs that it waits for. Those that only the host shows have none.

    put_back: what this rollback has put back already, over what later runs had left.
    """
    direct = {id_: _holders_of(touched, id_, later, host) for id_, touched in record.touched.items()}
    found = {}
    for id_, names in verdicts.waiting.items():
        # A switch that is kept for a VM that is kept for a later run waits for that run, too.
        same = [other for other, theirs in verdicts.waiting.items() if set(names) & set(theirs)]
        found[id_] = tuple(dict.fromkeys(run for each in (id_, *same) for run in direct[each]))
    for id_, touched in record.touched.items():
        ours = id_ in record.restored or id_ in put_back or verdicts.rests(id_)
        if not ours and id_ not in found and (runs := _that_changed_it(touched, id_, later)):
            found[id_] = runs
    return found


def _holders_of(touched: ChangedResource, id_: Id, later: Sequence[RunState], host: HostAnswers) -> tuple[str, ...]:
    dependents: set[Id] = set()
    with suppress(MissingFact):  # its names say what it waits for
        dependents = set(resting(touched.resource, touched.key, host))
    return tuple(
        run.run
        for run in later
        if run.run in _that_changed_it(touched, id_, later) or dependents & (run.touched.keys() - run.restored)
    )


def _that_changed_it(touched: ChangedResource, id_: Id, later: Sequence[RunState]) -> tuple[str, ...]:
    """Going back, they put a property where this run left it, and not as this run found it."""
    return tuple(run.run for run in later if id_ not in run.restored and _moves(run.touched.get(id_), touched))


def _moves(later: ChangedResource | None, touched: ChangedResource) -> bool:
    if later is None or later.is_restored:
        return False
    return any(touched.original.get(name, value) != value for name, value in later.original.items())


def _replayed(run: str, store: Store) -> RunState | None:
    try:
        return replay(run, read_journal(store.existing(run)))
    except WinhostError:
        return None  # nobody can go on with it, either
