"""Whether what was wanted is still so, property by property."""

from dataclasses import dataclass

from winhost.core.answers import Json, MissingFact
from winhost.core.steps import DesiredResource
from winhost.engine.order import state_of
from winhost.engine.planning import CheckedPlan, PlanRefused, make_plan
from winhost.model.facts import Facts
from winhost.model.plan import Stage
from winhost.resources.host import HostFacts
from winhost.resources.registry import unread


@dataclass(frozen=True)
class Check:
    """One property: what was wanted and what is found. `found` is a sentence where there is nothing to compare."""

    title: str
    resource: str
    property: str
    desired: Json
    found: Json
    holds: bool


def check(desired: DesiredResource, facts: Facts) -> list[Check]:
    """A check for each property of a goal."""
    try:
        state = state_of(facts, desired.resource, desired.key)
    except MissingFact as missing:
        return [_lost(desired, name, unread(missing)) for name in desired.desired]
    if state is None:
        return [_lost(desired, name, "it is not there any more") for name in desired.desired]
    return [
        Check(desired.title, desired.resource, name, value, state[name], state[name] == value)
        for name, value in desired.desired.items()
    ]


def verify_stages(stages: tuple[Stage, ...], facts: Facts) -> list[Check]:
    """Checks for all that these stages want; of a resource in several, the last goal counts."""
    last = {(w.resource, tuple(sorted(w.key.items()))): w for stage in stages for w in stage.desired}
    return [found for desired in last.values() for found in check(desired, facts)]


def verify_plan(checked: CheckedPlan, facts: HostFacts) -> list[Check]:
    """Checks for all that a plan wants, what it had to defer included.

    What forbids the path by now is one of them: what it had to defer cannot be told then.
    Raises UsageError: NotOnHost.
    """
    plan = checked.plan
    if not plan.deferred:
        return verify_stages(plan.stages, facts.document)
    try:
        later = make_plan(facts, checked.request.with_options(allow_unverified=True)).stages
    except PlanRefused as refused:
        return [*verify_stages(plan.stages, facts.document), _forbidden(plan.request.path, refused)]
    return verify_stages((*plan.stages, *later), facts.document)


def _forbidden(path: str, refused: PlanRefused) -> Check:
    return Check(f"Path {path}", "", "verdict", "possible", " ".join(refused.grounds.because), holds=False)


def _lost(desired: DesiredResource, name: str, why: str) -> Check:
    return Check(desired.title, desired.resource, name, desired.desired[name], why, holds=False)
