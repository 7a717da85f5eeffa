"""Compute what a change needs and asks for, by the rules that its resource declares."""

from collections.abc import Iterable, Iterator

from .conditions import States, hold, worded
from .rules import ConsentRule, KeepIf, NeedRule
from .steps import Change, Need


def needs_of(rules: Iterable[NeedRule], change: Change) -> tuple[Need, ...]:
    """The states that other resources must have while the change is made."""
    return tuple(
        Need(rule.resource, {rule.part: name}, rule.desired)
        for rule in rules
        for name in sorted(set(_needed(rule, change)))
    )


def consents_of(rules: Iterable[ConsentRule], change: Change) -> tuple[str, ...]:
    """Each once, in the order of the rules."""
    states = _states(change)
    asked = (rule for rule in rules if hold(rule.when, states) and not (rule.unless and hold(rule.unless, states)))
    return tuple(dict.fromkeys(rule.consent for rule in asked))


def lasting(rules: Iterable[KeepIf], change: Change) -> str | None:
    """Say why the change cannot be taken back, or None."""
    states = _states(change)
    return ", and ".join(worded(each.reason, each.when, states) for each in rules if hold(each.when, states)) or None


def _states(change: Change) -> States:
    return {"before": change.before, "desired": change.desired, "key": change.key}


def _needed(rule: NeedRule, change: Change) -> Iterator[str]:
    if rule.key:
        yield change.key[rule.key]
        return
    for state in (change.before, change.desired):
        value = state.get(rule.property)
        if isinstance(value, str) and value.startswith(rule.starts_with):
            yield value[len(rule.starts_with) :]
