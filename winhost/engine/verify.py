"""Check whether desired properties still hold, one by one."""

from winhost.core.answers import NOT_READ, identity
from winhost.core.checks import Check, check
from winhost.engine.failures import PlanRefused
from winhost.engine.planning import CheckedPlan, make_plan
from winhost.model.facts import Facts
from winhost.model.plan import Stage
from winhost.resources.host import HostFacts
from winhost.resources.registry import describe_missing, host_answers
from winhost.resources.shared import READING


def verify_stages(stages: tuple[Stage, ...], facts: Facts) -> list[Check]:
    """Check all goals of these stages. If several stages have a goal for a resource, the last one counts."""
    last = {identity(w.resource, w.key): w for stage in stages for w in stage.desired}
    now = host_answers(facts)
    return [found for desired in last.values() for found in check(desired, now, describe_missing)]


def verify_plan(checked: CheckedPlan, facts: HostFacts) -> list[Check]:
    """Check all goals of a plan, including deferred ones. If the path is refused by now, the deferred goals are not
    known, and the refusal is a failed check. Raises UsageError: NotOnHost.
    """
    plan = checked.plan
    if not plan.deferred:
        return verify_stages(plan.stages, facts.document)
    try:
        later = make_plan(facts, checked.request.with_options(allow_unverified=True)).stages
    except PlanRefused as refused:
        why = " ".join(refused.grounds.reasons)
        forbidden = Check(f"Path {plan.request.path}", "", "verdict", "possible", why, holds=False)
        return [*verify_stages(plan.stages, facts.document), forbidden]
    # These instances were not read by name, so the facts of the Linux do not have them.
    unread = (
        Check(each.title, each.resource, "state", "as planned", str(NOT_READ), holds=False)
        for each in later[-1].deferred
        if each.until == READING
    )
    return [*verify_stages((*plan.stages, *later), facts.document), *unread]
