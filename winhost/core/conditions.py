"""Evaluate a declaration's conditions over the states of a resource, and name the values that they found."""

from collections.abc import Iterable, Mapping

from .answers import Json
from .rules import Condition

States = Mapping[str, Mapping[str, Json]]  # by the names that `Condition.of` has


def hold(conditions: Iterable[Condition], states: States) -> bool:
    """Raises what reading a property of a state raises."""
    return all(_holds(each, states) for each in conditions)


def worded(sentence: str, conditions: Iterable[Condition], states: States) -> str:
    """Fill the properties in braces with what the conditions found."""
    return sentence.format_map({each.property: _shown(each, states) for each in conditions if each.property})


def _holds(condition: Condition, states: States) -> bool:
    state = states[condition.of]
    if condition.property:
        return condition.property in state and _fits(condition, state[condition.property], states)
    return any(_fits(condition, value, states) for value in state.values())


def _fits(condition: Condition, value: Json, states: States) -> bool:
    return (
        (not condition.one_of or _is_among(value, condition.one_of))
        and not _is_among(value, condition.none_of)
        and _begins(value, condition.starts_with)
        and (not condition.unavailable or (isinstance(value, Mapping) and "unavailable" in value))
        and all(value != _read(states[other], condition.property) for other in condition.differs_from)
        and (not condition.gained or bool(_gain(condition, value, states)))
    )


def _is_among(value: Json, values: Iterable[Json]) -> bool:
    """Compare as JSON does: 1 is not true."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in values)


def _shown(condition: Condition, states: States) -> Json:
    value = _read(states[condition.of], condition.property)
    if condition.gained:
        gain = _gain(condition, value, states)
        return ", ".join(gain) if isinstance(gain, list) else gain
    return value[len(condition.starts_with) :] if condition.starts_with else value


def _begins(value: Json, start: str) -> bool:
    return not start or (isinstance(value, str) and value.startswith(start))


def _gain(condition: Condition, value: Json, states: States) -> Json:
    """The increase of a number since the run set it, or the elements that a list has gained since."""
    left = _read(states["after"], condition.property)
    if isinstance(value, (list, tuple)):
        return sorted(set(value) - set(left or ()))
    return max(value - (left or 0), 0) if isinstance(value, int) else 0


def _read(state: Mapping[str, Json], name: str) -> Json:
    return state[name] if name in state else None  # noqa: SIM401 - `get` does not raise for what could not be read
