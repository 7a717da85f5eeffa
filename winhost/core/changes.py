"""The changes of a run, summed up from the lines of its journal: rollback undoes these and nothing else."""

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import TypeVar

from .answers import Id, Json, Key, identity
from .dataclass import dataclass
from .steps import Step


@dataclass(frozen=True)
class Dependent:
    """An instance that depends on another one. state: its state, if that counts."""

    resource: str
    key: Key
    state: Mapping[str, Json] | None = None


@dataclass(frozen=True)
class ChangedResource:
    """A resource that this run changed, from its first state to the one it was left in.

    before: the whole state, as the host reported it at the first change. users: its dependents then. changed: the
    properties that the run set. after: the state that the run left. transitional: states that are also the run's doing,
    because it was changing from or to them. dependents: those after the last stage; None if a step was begun since.
    first_dependents: those that were read first after the change.
    """

    resource: str
    key: Key
    title: str
    before: Mapping[str, Json]
    changed: tuple[str, ...]
    after: Mapping[str, Json]
    transitional: tuple[Mapping[str, Json], ...] = ()
    users: tuple[Dependent, ...] = ()
    dependents: tuple[Dependent, ...] | None = None
    first_dependents: tuple[Dependent, ...] | None = None

    @property
    def original(self) -> Mapping[str, Json]:
        """The values of the changed properties as they were found."""
        return {name: self.before[name] for name in self.changed}

    @property
    def is_restored(self) -> bool:
        """It was left as it was found, as far as is known."""
        return not self.transitional and all(self.after[name] == value for name, value in self.original.items())


@dataclass(frozen=True)
class Changes:
    """All that a journal tells of a run. run: its name; id: tells it from others of that name; restored: what an
    earlier rollback restored for good; restarting_from: the boot that its restart ends, once it asked for one; outcome:
    how it ended, if it did.
    """

    touched: Mapping[Id, ChangedResource] = field(default_factory=dict)
    in_flight: Step | None = None
    going_back: bool = False
    restored: frozenset[Id] = frozenset()
    restart_due: bool = False
    restarting_from: str | None = None
    outcome: str | None = None
    run: str = ""
    id: str = ""

    @property
    def unchanged(self) -> bool:
        """The host is as it was found, as far as is known: there is nothing to resume or roll back."""
        idle = self.in_flight is None and not self.restart_due
        return idle and all(touched.is_restored for touched in self.touched.values())


C = TypeVar("C", bound=Changes)


class Unfitting(Exception):
    """A line that no run can have written."""


def begun(changes: C, step: Step, found: Mapping[str, Json], users: tuple[Dependent, ...] = ()) -> C:
    """Record that a step is about to be done."""
    if not set(step.desired) == set(step.before) <= set(found):
        raise Unfitting("it does not say what it began from")
    id_ = identity(step.resource, step.key)
    known = changes.touched.get(id_)
    if changes.going_back and known:
        # A VM that is off for other steps back: whoever goes on from here must not take that for somebody else's doing.
        moved = replace(known, transitional=(step.before, step.desired))
        return replace(changes, in_flight=step, touched={**changes.touched, id_: moved})
    before = known.before if known else found
    touched = ChangedResource(
        resource=step.resource,
        key=step.key,
        title=step.title,
        before=before,
        changed=tuple(dict.fromkeys((*(known.changed if known else ()), *step.desired))),
        after={**(known.after if known else before), **step.desired},
        transitional=(step.before,),
        users=known.users if known else users,
        first_dependents=known.first_dependents if known else None,
    )
    # What this step creates is the run's own, so dependents are read again after it.
    others = {other: replace(known, dependents=None) for other, known in changes.touched.items()}
    if changes.going_back:
        others = dict(changes.touched)
    return replace(changes, in_flight=step, touched={**others, id_: touched}, outcome=None)


def ended(changes: C, id_: Id, after: Mapping[str, Json] | None, restart: bool = False) -> C:
    """Record that the step that was begun is done, or was refused."""
    return replace(left(changes, id_, after), in_flight=None, restart_due=changes.restart_due or restart)


def left(changes: C, id_: Id, after: Mapping[str, Json] | None) -> C:
    """Record the state after a step or a restart, where that is known."""
    if id_ not in changes.touched:
        raise Unfitting("it ends what was not begun")
    if after is None:
        return changes
    known = changes.touched[id_]
    if changes.going_back:
        # Only what was set back is our doing: the rest of it may be what somebody else changed since.
        ours = changes.in_flight.desired if changes.in_flight else ()
        touched = replace(known, transitional=({name: after[name] for name in ours if name in after},))
    else:
        touched = replace(known, after={**known.after, **after}, transitional=())
    return replace(changes, touched={**changes.touched, id_: touched})


def restarting(changes: C, boot_id: str) -> C:
    """Record that a restart of this boot is about to be asked for."""
    return replace(changes, restarting_from=boot_id, restart_due=True)


def restarted(changes: C, states: Iterable[tuple[Id, Mapping[str, Json] | None]]) -> C:
    """Record that the host is back. A change that took effect with the restart is what it is now, not what it was while
    pending.
    """
    changes = replace(changes, restarting_from=None, restart_due=False)
    for id_, after in states:
        known = changes.touched.get(id_)
        if not changes.going_back:
            changes = left(changes, id_, after)
        elif known and not known.transitional and after is not None:
            # A run that was killed on the way there may still have owed this restart.
            touched = replace(known, after={**known.after, **after})
            changes = replace(changes, touched={**changes.touched, id_: touched})
    return changes


def turned_back(changes: C) -> C:
    """Record that the run goes back from here on."""
    return replace(changes, going_back=True, in_flight=None, outcome=None)


def noted(changes: C, dependents: Mapping[Id, tuple[Dependent, ...]]) -> C:
    """Record the dependents of what was changed so far."""
    if not dependents.keys() <= changes.touched.keys():
        raise Unfitting("it tells of what was not begun")
    touched = dict(changes.touched)
    for id_, users in dependents.items():
        first = touched[id_].first_dependents
        touched[id_] = replace(touched[id_], dependents=users, first_dependents=users if first is None else first)
    return replace(changes, touched=touched)


def restored(changes: C, ids: Iterable[Id]) -> C:
    """Record what was restored for good."""
    found = frozenset(ids)
    if not found <= changes.touched.keys():
        raise Unfitting("it gives back what was not begun")
    return replace(changes, restored=found)
