"""Check whether desired properties still hold, one by one."""

from winhost.core.answers import NOT_THERE, identity
from winhost.core.checks import Check, check
from winhost.engine.failures import PlanRefused
from winhost.engine.planning import CheckedPlan, make_plan
from winhost.model.facts import Facts
from winhost.model.plan import Stage
from winhost.resources.host import HostFacts
from winhost.resources.registry import describe_missing, host_answers
from winhost.resources.shared import READING


def verify_stages(stages: tuple[Stage, ...], facts: Facts) -> list[Check]:
    """Checks for all that these stages want; of a resource in several, the last goal counts."""
    last = {identity(w.resource, w.key): w for stage in stages for w in stage.desired}
    now = host_answers(facts)
    return [found for desired in last.values() for found in check(desired, now, describe_missing)]


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
        why = " ".join(refused.grounds.because)
        forbidden = Check(f"Path {plan.request.path}", "", "verdict", "possible", why, holds=False)
        return [*verify_stages(plan.stages, facts.document), forbidden]
    # Facts of a Linux hold what it was asked for by name when they were read, and this is not among it.
    untold = (
        Check(each.title, each.resource, "state", "as planned", str(NOT_THERE), holds=False)
        for each in later[-1].deferred
        if each.until == READING
    )
    return [*verify_stages((*plan.stages, *later), facts.document), *untold]
