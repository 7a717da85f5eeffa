"""Runs that came after one and still stand, by the journals of this controller."""

from collections.abc import Sequence
from contextlib import suppress

from winhost.core.marks import Mark, MarkedRun
from winhost.core.rollback import LaterRuns
from winhost.engine.journal import read_journal
from winhost.engine.run_state import RunState, id_of, replay
from winhost.engine.store import Store
from winhost.model.errors import WinhostError


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
