"""Check whether desired properties still hold, one by one."""

from collections.abc import Callable

from .answers import Json, MissingFact
from .dataclass import dataclass
from .host_answers import HostAnswers
from .steps import DesiredResource


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
    """A check for each property of a goal. unread: a sentence about what was not read."""
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
