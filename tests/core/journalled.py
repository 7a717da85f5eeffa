"""Journals as runs of any Windows resources might have left them, and how the host may stand by now."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, cast

from hypothesis import strategies as st

from tests.core.declared import UNKNOWN
from winhost.core import changes
from winhost.core.answers import HostAnswers, Json, Key, Record, Unavailable, Unknown, fault, identity
from winhost.core.changes import Changes, Dependent
from winhost.core.rules import Condition, DependentRule, ResourceRules
from winhost.core.steps import Step
from winhost.lab.hostfile import expand_all
from winhost.resources.registry import RULES as ALL_RULES
from winhost.resources.registry import WINDOWS, WINDOWS_STATES

PARTS = {
    "account": ("winhost", "somebody"),
    "distro": ("winhost", "theirs"),
    "vm": ("0c8dd5a9-0001-4e1b-9a4b-2f4e3a1c0001", "0c8dd5a9-0002-4e1b-9a4b-2f4e3a1c0002"),
}
"""Parts of keys that several resources share."""
RULES = {
    name: replace(rules, dependents=tuple(rule for rule in rules.dependents if rule.resource in WINDOWS))
    for name, rules in ALL_RULES.items()
    if name in WINDOWS
}
"""Of Windows alone: what is inside a distro no script on Windows can read."""
MORE_VALUES = 6
PROPERTIES = {state.resource_type.name: {each.name for each in fields(cast(Any, state))} for state in WINDOWS_STATES}
SETTABLE = tuple(name for name, resource in WINDOWS.items() if resource.sets)
State = Mapping[str, Json]
Event = Mapping[str, Any]


@dataclass(frozen=True)
class Journalled:
    """events: lines as the scripts write them; changes: what the engine makes of the same; answers: of the host now."""

    events: tuple[Event, ...]
    changes: Changes
    answers: Mapping[str, tuple[Record, ...] | Unknown | Unavailable]

    @property
    def host(self) -> HostAnswers:
        return HostAnswers(self.answers, RULES)


@cache
def values_of(resource: str) -> Mapping[str, tuple[Json, ...]]:
    """By property: what simulated hosts have, and what the rules of this resource and of others look for."""
    found: dict[str, list[Json]] = {}
    for facts, _ in expand_all().values():
        answer = facts.resources.get(resource, ())
        for record in answer if isinstance(answer, tuple) else ():
            _gather(found, record.state)
    _gather(found, RULES[resource].absent or {})
    _gather(found, RULES[resource].undo.remove_if_created)
    for name, value in _looked_for(resource):
        found.setdefault(name, []).append(value)
    for name in found.keys() | PROPERTIES[resource]:
        found.setdefault(name, []).extend(_others(found.get(name, [])))
    return {name: tuple(_once(values)) for name, values in found.items()}


def _gather(found: dict[str, list[Json]], state: State) -> None:
    for name, value in state.items():
        values = found.setdefault(name, [])
        if len(values) < MORE_VALUES and value not in values:
            values.append(value)


def _looked_for(resource: str) -> Iterator[tuple[str, Json]]:
    for rules in RULES.values():
        for rest in rules.dependents:
            if rest.resource == resource:
                yield from _values_of_rest(rest, rules)
    undo = RULES[resource].undo
    for conditions in (*undo.gone_if, *(each.when for each in undo.keep_if), *(each.when for each in undo.unknown_if)):
        yield from ((each.property, value) for each in conditions if each.property for value in _named(each))


def _values_of_rest(rest: DependentRule, rules: ResourceRules) -> Iterator[tuple[str, Json]]:
    if rest.at:
        yield from ((rest.at[0], rest.at[1].format_map(key)) for key in keys_of(rules))
    if rest.unless:
        yield from ((rest.unless[0], value) for value in rest.unless[1])


def _named(condition: Condition) -> Iterator[Json]:
    yield from condition.one_of or ()
    yield from condition.none_of or ()


def _others(values: Sequence[Json]) -> list[Json]:
    """Of the same kinds, so that there always is one that somebody else may have chosen."""
    made: list[Json] = []
    for value in values:
        if isinstance(value, bool):
            made.append(not value)
        elif isinstance(value, int):
            made.append(value + 1)
        elif isinstance(value, str):
            made.append(f"{value}2")
    return made or ["theirs", None]


def _once(values: Sequence[Json]) -> Iterator[Json]:
    seen: list[tuple[type, Json]] = []
    for value in values:
        if (type(value), value) not in seen:
            seen.append((type(value), value))
            yield value


def keys_of(rules: ResourceRules) -> tuple[Key, ...]:
    """Two of each; one of what a host has one of."""
    if not rules.key:
        return ({},)
    return tuple({part: PARTS.get(part, (f"{part}-1", f"{part}-2"))[number] for part in rules.key} for number in (0, 1))


def state_of(resource: str) -> st.SearchStrategy[dict[str, Json]]:
    return st.fixed_dictionaries({name: st.sampled_from(values) for name, values in values_of(resource).items()})


@st.composite
def journals(draw: st.DrawFn) -> Journalled:
    """One run, there and perhaps on its way back."""
    made = _Journal(draw)
    made.forward()
    if draw(st.booleans()):
        made.back()
    return Journalled(tuple(made.events), made.changes, made.answers())


@dataclass
class _Journal:
    draw: st.DrawFn
    events: list[Event] = field(default_factory=list)
    changes: Changes = field(default_factory=Changes)

    def forward(self) -> None:
        ids = self.draw(st.lists(_INSTANCES, min_size=1, max_size=4, unique_by=lambda each: identity(*each)))
        for resource, key in ids:
            for _ in range(self.draw(st.sampled_from([1, 1, 1, 2]))):
                self.step(resource, key)
        if self.draw(st.booleans()):
            self.dependents()

    def back(self) -> None:
        self.events.append({"event": "back", "accepted": []})
        self.changes = replace(self.changes, going_back=True, in_flight=None)
        touched = list(self.changes.touched.values())
        for each in self.draw(st.lists(st.sampled_from(touched), max_size=2, unique_by=lambda each: each.title)):
            self.step(each.resource, each.key)
        if self.draw(st.integers(0, 4)) == 0:
            self.outcome()

    def step(self, resource: str, key: Key) -> None:
        found = self.found(resource, key)
        names = self.draw(st.lists(st.sampled_from(RULES[resource].sets), min_size=1, max_size=3, unique=True))
        desired = {name: self.draw(state_of(resource))[name] for name in names}
        known = self.changes.touched.get(identity(resource, key))
        title = known.title if known else f"thing {len(self.changes.touched) + 1}"
        before = {name: found[name] for name in names}
        users = self.dependents_of(resource)
        step = Step("1.1", resource, key, "desired", before, desired, title, "")
        self.changes = changes.record_step_start(self.changes, step, found, users)
        told = {"resource": resource, "key": key, "title": title, "before": before, "desired": desired}
        self.events.append({"event": "begin", "step": told, "found": found, "users": [as_told(each) for each in users]})
        self.end(resource, key, {**found, **desired})

    def found(self, resource: str, key: Key) -> State:
        known = self.changes.touched.get(identity(resource, key))
        if known:
            return {**known.before, **known.after}
        absent = RULES[resource].absent
        state = self.draw(state_of(resource))
        # What a run makes was not there, and then nothing of it was.
        return {**state, **absent} if absent is not None and self.draw(st.booleans()) else state

    def end(self, resource: str, key: Key, left: State) -> None:
        how = self.draw(st.sampled_from(["end", "end", "end", "failed", "lost", "killed"]))
        if how == "killed":
            return
        after = None if how == "lost" else left
        event: dict[str, Any] = {"event": "end" if how == "end" else "failed", "resource": resource, "key": key}
        self.events.append({**event, "after": after, "restart": False})
        self.changes = changes.record_state(self.changes, identity(resource, key), after)
        self.changes = replace(self.changes, in_flight=None)

    def dependents(self) -> None:
        noted = {id_: self.dependents_of(each.resource) for id_, each in self.changes.touched.items()}
        self.changes = changes.record_dependents(self.changes, noted)
        told = [
            {"resource": each.resource, "key": each.key, "users": [as_told(user) for user in noted[id_]]}
            for id_, each in self.changes.touched.items()
        ]
        self.events.append({"event": "dependents", "resources": told})

    def dependents_of(self, resource: str) -> tuple[Dependent, ...]:
        rules = RULES[resource].dependents
        if not rules:
            return ()
        return tuple(self.draw(st.lists(st.sampled_from(rules).flatmap(_dependents), max_size=2)))

    def outcome(self) -> None:
        ids = list(self.changes.touched)
        given = self.draw(st.lists(st.sampled_from(ids), unique=True))
        still = [self.changes.touched[id_] for id_ in ids if id_ not in given]
        told = [{"resource": each.resource, "key": each.key} for each in still]
        self.events.append({"event": "outcome", "outcome": "not all rolled back", "open": told})
        self.changes = changes.record_restored(self.changes, given)

    # ---- and the host by now

    def answers(self) -> Mapping[str, tuple[Record, ...] | Unknown | Unavailable]:
        return {resource: self.answer(resource) for resource in SETTABLE}

    def answer(self, resource: str) -> tuple[Record, ...] | Unknown | Unavailable:
        how = self.draw(st.sampled_from(["read"] * 8 + ["unknown", "unavailable"]))
        requires = RULES[resource].requires
        if how == "unavailable" and requires:
            return Unavailable(requires)
        if how == "unknown":
            return Unknown(fault(UNKNOWN["unknown"]))
        there = [key for key in keys_of(RULES[resource]) if self.draw(st.integers(0, 3))]
        return tuple(Record(key=key, state=self.now(resource, key)) for key in there)

    def now(self, resource: str, key: Key) -> State:
        theirs = self.draw(state_of(resource))
        known = self.changes.touched.get(identity(resource, key))
        if not known:
            return theirs
        states = [{**known.before, **known.after}, known.before, *({**theirs, **each} for each in known.transitional)]
        now = {
            name: self.draw(st.sampled_from([*states, states[0], states[0], theirs]))[name]
            for name in values_of(resource)
        }
        if self.draw(st.integers(0, 9)) == 0:
            now[self.draw(st.sampled_from(sorted(now)))] = UNKNOWN
        return now


_INSTANCES = st.sampled_from([(resource, key) for resource in SETTABLE for key in keys_of(RULES[resource])])


def _dependents(rule: DependentRule) -> st.SearchStrategy[Dependent]:
    keys = st.sampled_from(keys_of(RULES[rule.resource]))
    if not rule.since:
        return keys.map(lambda key: Dependent(rule.resource, key))
    counted = state_of(rule.resource).map(lambda state: {name: state[name] for name in rule.since or ()})
    return st.builds(Dependent, st.just(rule.resource), keys, counted)


def as_told(user: Dependent) -> Event:
    """As a journal has it."""
    return {"resource": user.resource, "key": user.key, "state": user.state}


def as_answered(answer: tuple[Record, ...] | Unknown | Unavailable) -> Mapping[str, Any]:
    """As the agent says it."""
    if isinstance(answer, Unknown):
        return {"ok": False, "error": UNKNOWN["unknown"]}
    if isinstance(answer, Unavailable):
        return {"ok": False, "unavailable": answer.unavailable}
    return {"ok": True, "instances": [{"key": each.key, "state": each.state} for each in answer]}
