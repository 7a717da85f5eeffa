"""Evaluate what resources declare of their states and changes. bundle/powershell/rules.ps1 does the same."""

from collections.abc import Iterable, Mapping

from .answers import Json
from .rules import Condition, ConsentRule, KeepIf, NeedRule
from .steps import Change, Need

States = Mapping[str, Mapping[str, Json]]  # by the names that `Condition.of` has


def hold(conditions: Iterable[Condition], states: States) -> bool:
    """Tell whether all conditions hold. Raises what reading a property of a state raises."""
    for each in conditions:
        state = states[each.of]
        if not each.property:
            if not any(_fits(each, value, states) for value in state.values()):
                return False
        elif each.property not in state or not _fits(each, state[each.property], states):
            return False
    return True


def worded(sentence: str, conditions: Iterable[Condition], states: States) -> str:
    """Fill the properties in braces with what the conditions found."""
    shown = {}
    for each in conditions:
        if each.property:
            value = _read(states[each.of], each.property)
            if each.gained:
                gain = _gain(each, value, states)
                value = ", ".join(gain) if isinstance(gain, list) else gain
            elif each.starts_with:
                value = value[len(each.starts_with) :]
            shown[each.property] = value
    return sentence.format_map(shown)


def needs_of(rules: Iterable[NeedRule], change: Change) -> tuple[Need, ...]:
    """The states that other resources must have while the change is made."""
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
    """The consents that the change asks for, each once, in the order of the rules."""
    states = _states(change)
    asked = (rule for rule in rules if hold(rule.when, states) and not (rule.unless and hold(rule.unless, states)))
    return tuple(dict.fromkeys(rule.consent for rule in asked))


def lasting(rules: Iterable[KeepIf], change: Change) -> str | None:
    """Say why the change cannot be taken back, or None."""
    states = _states(change)
    return ", and ".join(worded(each.reason, each.when, states) for each in rules if hold(each.when, states)) or None


def _states(change: Change) -> States:
    return {"before": change.before, "desired": change.desired, "key": change.key}


def _fits(condition: Condition, value: Json, states: States) -> bool:
    start = condition.starts_with
    return (
        (not condition.one_of or _is_among(value, condition.one_of))
        and not _is_among(value, condition.none_of)
        and (not start or (isinstance(value, str) and value.startswith(start)))
        and (not condition.unavailable or (isinstance(value, Mapping) and "unavailable" in value))
        and all(value != _read(states[other], condition.property) for other in condition.differs_from)
        and (not condition.gained or bool(_gain(condition, value, states)))
    )


def _is_among(value: Json, values: Iterable[Json]) -> bool:
    """Compare as JSON does: 1 is not true."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in values)


def _gain(condition: Condition, value: Json, states: States) -> Json:
    """The increase of a number since the run set it, or the elements that a list has gained since."""
    left = _read(states["after"], condition.property)
    if isinstance(value, (list, tuple)):
        return sorted(set(value) - set(left or ()))
    return max(value - (left or 0), 0) if isinstance(value, int) else 0


def _read(state: Mapping[str, Json], name: str) -> Json:
    return state[name] if name in state else None  # noqa: SIM401 - `get` does not raise for what could not be read
