"""Decide what of a resource is undone, by the rule that it declares. rules.ps1 is the same in PowerShell."""

from collections.abc import Mapping
from dataclasses import field

from .answers import Json, MissingFact, Unavailable, refuse_missing
from .conditions import States, hold, worded
from .dataclass import dataclass
from .rules import ResourceRules, UndoRule


@dataclass(frozen=True)
class Keep:
    """The reason why rollback leaves something, or a part of it, as it is. rest: properties that are still restored."""

    reason: str
    rest: Mapping[str, Json] = field(default_factory=dict)


Undo = Mapping[str, Json] | Keep


def find_undo(
    rules: ResourceRules, before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]
) -> Undo:
    """before: what the run changed, as it was found; after: the state that it left. Raises MissingFact."""
    rule = rules.undo
    states = {"before": before, "after": after, "now": _Read(rules.name, now)}
    for name in before:
        _ = states["now"][name]  # what could not be read is not judged
    left = _left_alone(rule, states)
    if left is not None:
        return left
    created = _is_there_by_the_run(rule, states)
    if created and not rule.unless_changed:
        return _differing(rule.remove_if_created, states)
    if rule.never:
        return Keep(rule.never)
    undo = _by_property(rule, states)
    return _differing(rule.remove_if_created, states) if created and not isinstance(undo, Keep) else undo


def _left_alone(rule: UndoRule, states: States) -> Undo | None:
    """Nothing, or why it is kept, where a condition says so."""
    if any(hold(each, states) for each in rule.gone_if):
        return {}
    for unknown in rule.unknown_if:
        if hold(unknown.when, states):
            raise MissingFact(unknown.fact, Unavailable(unknown.until))
    for keep in rule.keep_if:
        if hold(keep.when, states):
            return Keep(worded(keep.reason, keep.when, states))
    return None


class _Read(dict[str, Json]):
    """A state; reading a property that could not be read raises MissingFact."""

    def __init__(self, resource: str, state: Mapping[str, Json]) -> None:
        super().__init__(state)
        self._resource = resource

    def __getitem__(self, name: str) -> Json:
        value = super().__getitem__(name)
        refuse_missing(f"{self._resource}.{name}", value, unavailable=False)
        return value


def _is_there_by_the_run(rule: UndoRule, states: States) -> bool:
    """Tell whether the run created it, by the first property of what is not there."""
    for name, absent in rule.remove_if_created.items():
        found = states["before"]
        return name in found and found[name] == absent and states["now"][name] != absent
    return False


def _differing(state: Mapping[str, Json], states: States) -> Mapping[str, Json]:
    return {name: value for name, value in state.items() if states["now"][name] != value}


def _by_property(rule: UndoRule, states: States) -> Undo:
    """Put back what still stands as the run left it; what somebody changed since is theirs."""
    now = states["now"]
    found = {name: _comes_back(rule, name, value) for name, value in states["before"].items()}
    ours = rule.unconditional or any(now[name] in values for name, values in rule.transitional_states.items())
    if not ours:
        _refuse_unavailable(found, now)
    undone = _differing(found, states)
    foreign = [name for name in undone if not ours and now[name] != states["after"].get(name)]
    rest = {name: value for name, value in undone.items() if name not in foreign}
    reasons = []
    for each in rule.not_restored:
        if each.property in rest and rest[each.property] == each.value:
            del rest[each.property]
            reasons.append(each.reason)
    if foreign:
        reasons.append(f"{', '.join(foreign)} changed since by somebody else")
    if not reasons:
        return rest
    return Keep(" and ".join(reasons), {} if rule.whole and foreign else rest)


def _comes_back(rule: UndoRule, name: str, value: Json) -> Json:
    instead = rule.instead.get(name)
    return instead[1] if instead is not None and instead[0] == value else value


def _refuse_unavailable(found: Mapping[str, Json], now: Mapping[str, Json]) -> None:
    for name, value in found.items():
        if now[name] != value and isinstance(now[name], Mapping) and "unavailable" in now[name]:
            raise MissingFact(name, Unavailable(now[name]["unavailable"]))
