"""Check whether desired properties still hold, one by one."""

from collections.abc import Callable, Iterable

from .answers import HostAnswers, Json, MissingFact, identity
from .changes import Changes
from .dataclass import dataclass
from .steps import DesiredResource, Step


@dataclass(frozen=True)
class Check:
    """The check of one property. found: its present value, or a sentence that says why there is none."""

    title: str
    resource: str
    property: str
    desired: Json
    found: Json
    holds: bool


def check(desired: DesiredResource, host: HostAnswers, unread: Callable[[MissingFact], str]) -> list[Check]:
    """Check each property of a goal. unread: makes the sentence about a fact that could not be read."""
    try:
        state = host.state_of(desired.resource, desired.key)
    except MissingFact as missing:
        return [_failed_check(desired, name, unread(missing)) for name in desired.desired]
    if state is None:
        return [_failed_check(desired, name, "it is not there any more") for name in desired.desired]
    return [
        Check(desired.title, desired.resource, name, value, state[name], state[name] == value)
        for name, value in desired.desired.items()
    ]


def _failed_check(desired: DesiredResource, name: str, reason: str) -> Check:
    return Check(desired.title, desired.resource, name, desired.desired[name], reason, holds=False)


def find_drift(
    record: Changes, goals: Iterable[DesiredResource], steps: Iterable[Step], host: HostAnswers
) -> dict[str, tuple[Json, Json]]:
    """Return the differences between the host and the facts that its plan was made from, by title and property: the
    planned value, and the present one. Raises MissingFact.

    A property that a desired step changes must have the value of the plan's facts, or already the desired one. A need
    must be as in the plan's facts, because it is restored to that. A goal without a step in the plan must hold already:
    nothing is changed that the plan did not show. Resources that this run has changed may differ.
    """
    steps = tuple(steps)
    planned = {(identity(step.resource, step.key), name) for step in steps for name in step.desired}
    differing: dict[str, tuple[Json, Json]] = {}
    for goal in goals:
        id_ = identity(goal.resource, goal.key)
        now = host.state_of(goal.resource, goal.key) or {}
        for name, value in goal.desired.items():
            if (id_, name) not in planned and id_ not in record.touched and now.get(name) != value:
                differing[f"{goal.title}: {name}"] = (value, now.get(name))
    for step in steps:
        if step.role == "restore" or identity(step.resource, step.key) in record.touched:
            continue
        now = host.state_of(step.resource, step.key) or {}
        for name, before in step.before.items():
            if now.get(name) not in ([before] if step.role == "need" else [before, step.desired[name]]):
                differing[f"{step.title}: {name}"] = (before, now.get(name))
    return differing
