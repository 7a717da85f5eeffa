"""Check whether desired properties still hold, one by one."""

from collections.abc import Callable, Iterable

from .answers import HostAnswers, Json, MissingFact, identity
from .changes import Changes
from .dataclass import dataclass
from .steps import DesiredResource, Step


@dataclass(frozen=True)
class Check:
    """One property: what was wanted and what is found. `found` is a sentence where there is nothing to compare."""

    title: str
    resource: str
    property: str
    desired: Json
    found: Json
    holds: bool


def check(desired: DesiredResource, host: HostAnswers, unread: Callable[[MissingFact], str]) -> list[Check]:
    """Check each property of a goal. unread: makes a sentence about what was not read."""
    try:
        state = host.state_of(desired.resource, desired.key)
    except MissingFact as missing:
        return [_lost(desired, name, unread(missing)) for name in desired.desired]
    if state is None:
        return [_lost(desired, name, "it is not there any more") for name in desired.desired]
    return [
        Check(desired.title, desired.resource, name, value, state[name], state[name] == value)
        for name, value in desired.desired.items()
    ]


def _lost(desired: DesiredResource, name: str, why: str) -> Check:
    return Check(desired.title, desired.resource, name, desired.desired[name], why, holds=False)


def drifted(
    record: Changes, goals: Iterable[DesiredResource], steps: Iterable[Step], host: HostAnswers
) -> dict[str, tuple[Json, Json]]:
    """The differences of a host from what its plan saw, by title and property: as planned, and now. Raises MissingFact.

    What a desired step changes must be as the plan saw it, or already as desired; a need must be as the plan saw it,
    because that is what it is restored to. A goal without a step in the plan must hold already: nothing is changed that
    the plan did not show. What this run changed itself may differ.
    """
    steps = tuple(steps)
    shown = {(identity(step.resource, step.key), name) for step in steps for name in step.desired}
    differing: dict[str, tuple[Json, Json]] = {}
    for goal in goals:
        id_ = identity(goal.resource, goal.key)
        now = host.state_of(goal.resource, goal.key) or {}
        for name, value in goal.desired.items():
            if (id_, name) not in shown and id_ not in record.touched and now.get(name) != value:
                differing[f"{goal.title}: {name}"] = (value, now.get(name))
    for step in steps:
        if step.role == "restore" or identity(step.resource, step.key) in record.touched:
            continue
        now = host.state_of(step.resource, step.key) or {}
        for name, before in step.before.items():
            if now.get(name) not in ([before] if step.role == "need" else [before, step.desired[name]]):
                differing[f"{step.title}: {name}"] = (before, now.get(name))
    return differing
