"""Declarations as resources might have them, with what a journal and a host tell of such a resource."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from winhost.core.answers import Json, MissingFact
from winhost.core.rules import Condition, ConsentRule, KeepIf, NeedRule, NotRestored, ResourceRules, UndoRule, UnknownIf
from winhost.core.undo import Undo, find_undo

UNKNOWN = {"unknown": {"category": "ReadError", "code": "Winhost.X", "hresults": [], "cmdlet": "", "message": "no"}}
UNAVAILABLE = {"unavailable": "Elsewhere"}
# Values that one language may take for another: by case, as dates, as nothing.
VALUES: Mapping[str, tuple[Json, ...]] = {
    "word": ("a", "A", "assigned:one", "assigned:two", ""),
    "count": (0, 1, 2, 70_000_000_000),
    "flag": (False, True),
    "things": ([], ["x"], ["y", "x"], ["x", "y", "z"], ["X"]),
    "maybe": (None, "a", "2026-11-22T10:00:00Z", UNAVAILABLE),
}
NAMES = tuple(VALUES)
WHOLE = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()})


@dataclass(frozen=True)
class Case:
    """What a run did to a resource that is so declared, and how it stands now."""

    rules: ResourceRules
    changed: tuple[str, ...]
    before: Mapping[str, Json]
    after: Mapping[str, Json]
    transitional: tuple[Mapping[str, Json], ...]
    now: Mapping[str, Json]

    @property
    def found(self) -> Mapping[str, Json]:
        """What the run changed, as it was."""
        return {name: self.before[name] for name in self.changed}

    @property
    def left(self) -> Mapping[str, Json]:
        """What the run left, or saw on its way."""
        seen = {n: self.now[n] for n in self.changed for state in self.transitional if state.get(n) == self.now[n]}
        return {**self.after, **seen}

    def undo(self, now: Mapping[str, Json] | None = None) -> Undo | MissingFact:
        try:
            return find_undo(self.rules, self.found, self.left, self.now if now is None else now)
        except MissingFact as missing:
            return missing


def some(values: tuple[Any, ...], most: int = 2) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=most).map(tuple)


@st.composite
def conditions(draw: st.DrawFn, *states: str) -> Condition:
    """One that says something, of any state that is named."""
    of = draw(st.sampled_from(states))
    name = draw(st.sampled_from(("", *NAMES)))
    values = VALUES[name or draw(st.sampled_from(NAMES))]
    said: dict[str, Any] = {}
    kinds = ["one_of", "none_of"]
    if name:
        kinds += ["unavailable"] + ["starts_with"] * (name == "word")
    if name and of == "now":
        kinds += ["differs_from"] + ["gained"] * (name in ("count", "things"))
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=2, unique=True)):
        said[kind] = {
            "one_of": some(values),
            "none_of": some(values),
            "starts_with": st.sampled_from(["a", "assigned:"]),
            "unavailable": st.just(True),
            "differs_from": st.sampled_from([("before",), ("after",), ("before", "after")]),
            "gained": st.just(True),
        }[kind]
    return Condition(name, of=of, **{kind: draw(strategy) for kind, strategy in said.items()})


@st.composite
def keeps(draw: st.DrawFn) -> KeepIf:
    """The sentence names what can be said in words: text, a number, and what was gained."""
    when = draw(st.lists(conditions("now", "before", "after"), min_size=1, max_size=3).map(tuple))
    last = {each.property: each for each in when}
    named = [name for name, each in last.items() if name in ("word", "count") or (name == "things" and each.gained)]
    parts = [f"{{{name}}}" for name in draw(st.lists(st.sampled_from(named), max_size=2))] if named else []
    return KeepIf(when, " ".join(["kept for", *parts]))


WHEN = st.lists(conditions("now", "before", "after"), min_size=1, max_size=2).map(tuple)
PROPERTIES = st.sampled_from(NAMES)


@st.composite
def valued(draw: st.DrawFn) -> tuple[str, Json, Json]:
    name = draw(PROPERTIES)
    return name, *(draw(st.sampled_from(VALUES[name])) for _ in range(2))


DECLARED = st.builds(
    UndoRule,
    gone_if=st.lists(WHEN, max_size=1).map(tuple),
    unknown_if=st.lists(st.builds(UnknownIf, WHEN, st.just("what rests on it"), st.just("its tools")), max_size=1).map(
        tuple
    ),
    keep_if=st.lists(keeps(), max_size=2).map(tuple),
    remove_if_created=st.just({})
    | st.lists(valued(), min_size=1, max_size=3).map(lambda all_: {name: value for name, value, _ in all_}),
    unless_changed=st.booleans(),
    never=st.sampled_from(["", "", "it's of no use"]),
    whole=st.booleans(),
    unconditional=st.sampled_from([False, False, True]),
    transitional_states=st.just({}) | valued().map(lambda one: {one[0]: one[1:]}),
    instead=st.just({}) | valued().map(lambda one: {one[0]: one[1:]}),
    not_restored=st.lists(valued().map(lambda one: NotRestored(one[0], one[1], f"{one[0]} is mended")), max_size=2).map(
        tuple
    ),
)


def is_at_one(rule: UndoRule) -> bool:
    """Says one thing of what was not there: take it away, or put this in its place. Every resource is held to that."""
    return not any(rule.remove_if_created.get(name, ...) == found for name, (found, _) in rule.instead.items())


UNDO = DECLARED.filter(is_at_one)
ON_KEY = (Condition("vm", of="key", starts_with="of the"), Condition("vm", of="key", none_of=("of the key",)))
ON_CHANGES = st.lists(conditions("before", "desired") | st.sampled_from(ON_KEY), max_size=2).map(tuple)
RISKS = st.lists(
    st.builds(ConsentRule, st.sampled_from(["restart", "network"]), when=ON_CHANGES, unless=ON_CHANGES), max_size=3
).map(tuple)
NEEDS = st.sampled_from(
    [
        (),
        (NeedRule("VmPower", "vm", {"state": "off"}, key="vm"),),
        (NeedRule("VmPower", "vm", {"state": "off"}, property="word", starts_with="assigned:"),),
    ]
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rules = ResourceRules("Made", "made things", undo=draw(UNDO), needs=draw(NEEDS), risks=draw(RISKS))
    changed = tuple(draw(st.lists(PROPERTIES, min_size=1, max_size=4, unique=True)))
    before, after, other = draw(WHOLE), draw(WHOLE), draw(WHOLE)
    # Of each property as it was found, as it was left, or as somebody else wants it.
    now = {name: draw(st.sampled_from([before, after, after, other]))[name] for name in NAMES}
    if draw(st.integers(0, 4)) == 0:
        now[draw(PROPERTIES)] = UNKNOWN
    on_its_way = draw(st.lists(WHOLE, max_size=2))
    transitional = tuple({name: state[name] for name in changed} for state in on_its_way)
    return Case(rules, changed, before, after, transitional, now)
