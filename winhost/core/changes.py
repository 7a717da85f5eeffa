"""The changes of a run, accumulated from the lines of its journal. Rollback undoes these and nothing else."""

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import TypeVar

from .answers import Id, Json, Key, identity
from .dataclass import dataclass
from .steps import Step


@dataclass(frozen=True)
class Dependent:
    """An instance that depends on another one. state: its state, if it depends only in that state."""

    resource: str
    key: Key
    state: Mapping[str, Json] | None = None


@dataclass(frozen=True)
class ChangedResource:
    """A resource that this run changed, from its first state to the one it was left in.

    before: the whole state, as the host reported it at the first change. users: its dependents then. changed: the
    properties that the run set. after: the state that the run left. transitional: states that are also the run's doing,
    because it was changing from or to them. dependents: those after the last stage; None if a step has started since.
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
        """The values of the changed properties before the run."""
        return {name: self.before[name] for name in self.changed}

    @property
    def is_restored(self) -> bool:
        """True if the run left the resource as it was before, as far as the journal shows."""
        return not self.transitional and all(self.after[name] == value for name, value in self.original.items())


@dataclass(frozen=True)
class Changes:
    """The state of a run by its journal. run: its name; id: unique among runs of that name; restored: resources that an
    earlier rollback restored for good; restarting_from: the id of the boot that the requested restart ends; outcome: of
    a run that has ended.
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
        """True if the host is as it was before the run, so that there is nothing to resume or roll back."""
        idle = self.in_flight is None and not self.restart_due
        return idle and all(touched.is_restored for touched in self.touched.values())


C = TypeVar("C", bound=Changes)


class InvalidEntry(Exception):
    """A journal has a line that no run can have written."""


def record_step_start(changes: C, step: Step, found: Mapping[str, Json], users: tuple[Dependent, ...] = ()) -> C:
    """Record that a step is about to start. found: the whole state before it. Raises InvalidEntry."""
    if not set(step.desired) == set(step.before) <= set(found):
        raise InvalidEntry("it does not say what it began from")
    id_ = identity(step.resource, step.key)
    earlier = changes.touched.get(id_)
    if changes.going_back and earlier:
        # A VM that is off for other rollback steps: a resumed rollback must not take that for somebody else's change.
        transitional = replace(earlier, transitional=(step.before, step.desired))
        return replace(changes, in_flight=step, touched={**changes.touched, id_: transitional})
    before = earlier.before if earlier else found
    touched = ChangedResource(
        resource=step.resource,
        key=step.key,
        title=step.title,
        before=before,
        changed=tuple(dict.fromkeys((*(earlier.changed if earlier else ()), *step.desired))),
        after={**(earlier.after if earlier else before), **step.desired},
        transitional=(step.before,),
        users=earlier.users if earlier else users,
        first_dependents=earlier.first_dependents if earlier else None,
    )
    # The instance that this step creates belongs to the run, so dependents are read again after it.
    others = {other: replace(earlier, dependents=None) for other, earlier in changes.touched.items()}
    if changes.going_back:
        others = dict(changes.touched)
    return replace(changes, in_flight=step, touched={**others, id_: touched}, outcome=None)


def record_step_end(changes: C, id_: Id, after: Mapping[str, Json] | None, restart: bool = False) -> C:
    """Record that the step in flight is done, or was refused. Raises InvalidEntry."""
    return replace(record_state(changes, id_, after), in_flight=None, restart_due=changes.restart_due or restart)


def record_state(changes: C, id_: Id, after: Mapping[str, Json] | None) -> C:
    """Record the state after a step or a restart, if that is known. Raises InvalidEntry."""
    if id_ not in changes.touched:
        raise InvalidEntry("it ends what was not begun")
    if after is None:
        return changes
    known = changes.touched[id_]
    if changes.going_back:
        # Only the properties of the step are the run's doing: somebody else may have changed the others since.
        step_properties = changes.in_flight.desired if changes.in_flight else ()
        touched = replace(known, transitional=({name: after[name] for name in step_properties if name in after},))
    else:
        touched = replace(known, after={**known.after, **after}, transitional=())
    return replace(changes, touched={**changes.touched, id_: touched})


def record_restart_request(changes: C, boot_id: str) -> C:
    """Record that a restart is about to be requested, which ends this boot."""
    return replace(changes, restarting_from=boot_id, restart_due=True)


def record_restart(changes: C, states: Iterable[tuple[Id, Mapping[str, Json] | None]]) -> C:
    """Record that the host is back. states: after the restart, of resources whose changes take effect with one."""
    changes = replace(changes, restarting_from=None, restart_due=False)
    for id_, after in states:
        known = changes.touched.get(id_)
        if not changes.going_back:
            changes = record_state(changes, id_, after)
        elif known and not known.transitional and after is not None:
            # A run that was killed before its rollback may still have needed this restart.
            touched = replace(known, after={**known.after, **after})
            changes = replace(changes, touched={**changes.touched, id_: touched})
    return changes


def record_rollback_start(changes: C) -> C:
    """Record that a rollback of the run starts."""
    return replace(changes, going_back=True, in_flight=None, outcome=None)


def record_dependents(changes: C, dependents: Mapping[Id, tuple[Dependent, ...]]) -> C:
    """Record the dependents of the resources that the run has changed so far. Raises InvalidEntry."""
    if not dependents.keys() <= changes.touched.keys():
        raise InvalidEntry("it tells of what was not begun")
    touched = dict(changes.touched)
    for id_, users in dependents.items():
        first = touched[id_].first_dependents
        touched[id_] = replace(touched[id_], dependents=users, first_dependents=users if first is None else first)
    return replace(changes, touched=touched)


def record_restored(changes: C, ids: Iterable[Id]) -> C:
    """Record the resources that were restored for good. Raises InvalidEntry."""
    restored_ids = frozenset(ids)
    if not restored_ids <= changes.touched.keys():
        raise InvalidEntry("it gives back what was not begun")
    return replace(changes, restored=restored_ids)
