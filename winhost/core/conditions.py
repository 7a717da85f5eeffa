"""Evaluate the conditions in the rules of resources. bundle/powershell/rules.ps1 does the same in PowerShell."""

from collections.abc import Iterable, Mapping

from .answers import Json
from .rules import Condition, ConsentRule, KeepIf, NeedRule
from .steps import Change, Need

States = Mapping[str, Mapping[str, Json]]  # by the values of `Condition.of`


def all_hold(conditions: Iterable[Condition], states: States) -> bool:
    """Tell whether all conditions hold. Raises MissingFact if a state does so when a property is read."""
    for each in conditions:
        state = states[each.of]
        if not each.property:
            if not any(_matches(each, value, states) for value in state.values()):
                return False
        elif each.property not in state or not _matches(each, state[each.property], states):
            return False
    return True


def fill_sentence(sentence: str, conditions: Iterable[Condition], states: States) -> str:
    """Replace the properties in braces: by the gained value, by the text after `starts_with`, or by the whole value."""
    values = {}
    for each in conditions:
        if each.property:
            value = _value_of(states[each.of], each.property)
            if each.gained:
                gain = _gain(each, value, states)
                value = ", ".join(gain) if isinstance(gain, list) else gain
            elif each.starts_with:
                value = value[len(each.starts_with) :]
            values[each.property] = value
    return sentence.format_map(values)


def needs_of(rules: Iterable[NeedRule], change: Change) -> tuple[Need, ...]:
    """Return the states that other resources must have while the change is made."""
    needs: list[Need] = []
    for rule in rules:
        values = [change.key[rule.key]] if rule.key else []
        if not rule.key:
            found = (state.get(rule.property) for state in (change.before, change.desired))
            texts = (value for value in found if isinstance(value, str) and value.startswith(rule.starts_with))
            values = [text[len(rule.starts_with) :] for text in texts]
        needs += [Need(rule.resource, {rule.part: value}, rule.desired) for value in sorted(set(values))]
    return tuple(needs)


def consents_of(rules: Iterable[ConsentRule], change: Change) -> tuple[str, ...]:
    """Return the consents that the change needs, each once, in the order of the rules."""
    states = _states(change)
    matching = (
        rule for rule in rules if all_hold(rule.when, states) and not (rule.unless and all_hold(rule.unless, states))
    )
    return tuple(dict.fromkeys(rule.consent for rule in matching))


def irreversible_reason(rules: Iterable[KeepIf], change: Change) -> str | None:
    """Return the reason why the change cannot be undone, or None if it can."""
    states = _states(change)
    return (
        ", and ".join(fill_sentence(each.reason, each.when, states) for each in rules if all_hold(each.when, states))
        or None
    )


def _states(change: Change) -> States:
    return {"before": change.before, "desired": change.desired, "key": change.key}


def _matches(condition: Condition, value: Json, states: States) -> bool:
    start = condition.starts_with
    return (
        (not condition.one_of or _is_among(value, condition.one_of))
        and not _is_among(value, condition.none_of)
        and (not start or (isinstance(value, str) and value.startswith(start)))
        and (not condition.unavailable or (isinstance(value, Mapping) and "unavailable" in value))
        and all(value != _value_of(states[other], condition.property) for other in condition.differs_from)
        and (not condition.gained or bool(_gain(condition, value, states)))
    )


def _is_among(value: Json, values: Iterable[Json]) -> bool:
    """Compare as JSON does: 1 is not true."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in values)


def _gain(condition: Condition, value: Json, states: States) -> Json:
    """Return the increase of a number since the run set it, or the elements that a list has gained since."""
    before = _value_of(states["after"], condition.property)
    if isinstance(value, (list, tuple)):
        return sorted(set(value) - set(before or ()))
    return max(value - (before or 0), 0) if isinstance(value, int) else 0


def _value_of(state: Mapping[str, Json], name: str) -> Json:
    return state[name] if name in state else None  # noqa: SIM401 - `get` does not raise for what could not be read
