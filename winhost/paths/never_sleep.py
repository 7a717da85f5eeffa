"""Keeping a host awake: what `never_sleep=true` changes, and what is not known of it."""

from collections.abc import Iterator, Mapping

from winhost.core.answers import NOT_READ, MissingFact
from winhost.model.facts import with_state
from winhost.model.reason import Caution, Severity
from winhost.resources.host import HostFacts
from winhost.resources.windows.power_plan import NEVER_SLEEP, PowerPlan

POWER_PLAN_PARTS = ("scheme", "name")  # the parts of each


def power_plans(facts: HostFacts, never_sleep: bool) -> tuple[Mapping[str, str], ...]:
    """The active power plan, where the host is to stay awake. Raises MissingFact where none is seen."""
    if not never_sleep:
        return ()
    active = [plan for plan in facts.all(PowerPlan) if plan.state.active]
    if not active:
        raise MissingFact("PowerPlan", NOT_READ)
    return tuple({"scheme": plan.key["scheme"], "name": plan.state.name} for plan in active)


def facts_kept_awake(facts: HostFacts, never_sleep: bool) -> HostFacts:
    """The host as a plan leaves it, for the rules that look at what it does when nobody uses it."""
    if not never_sleep:
        return facts
    awake = {"standby": NEVER_SLEEP, "hibernate": NEVER_SLEEP}
    document = facts.document.edited(
        "PowerPlan", lambda each: with_state(each, awake) if each.state["active"] else each
    )
    return HostFacts(document)


def sleep_cautions(facts: HostFacts, path: str, never_sleep: bool) -> Iterator[Caution]:
    """Modern Standby has rules of its own: whether a plan that never sleeps keeps such a host awake is unverified."""
    if never_sleep and any(_may_have_modern_standby(plan.state) for plan in facts.all(PowerPlan)):
        yield Caution(
            f"{path}.modern-standby",
            Severity.UNVERIFIED,
            "This computer has Modern Standby, or Windows does not say; whether it stays awake with a power plan that "
            "never sleeps is unverified.",
        )


def _may_have_modern_standby(plan: PowerPlan) -> bool:
    try:
        return plan.modern_standby
    except MissingFact:
        return True
