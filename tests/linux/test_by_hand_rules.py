"""What run.py knows of the nouns of Linux is what the engine knows, and its text can be read where it is to run."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.linux.test_scripts import (
    Script,
    is_no_python_of_the_oldest,
    is_not_plain_text,
    needs_more_than_the_standard_library,
)
from winhost import __version__
from winhost.engine.order import steps_for
from winhost.model.facts import Facts, MissingFact, Record
from winhost.model.plan import DesiredResource
from winhost.render import on_linux
from winhost.render.bundle import linux_script
from winhost.resources.base import Keep, ResourceType, Rests
from winhost.resources.registry import LINUX

SCRIPT = Script("run.py", linux_script().decode("ascii"))
MAYBE = {"unavailable": "DebianPackage"}
STATES: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "LinuxFile": {
        "text": st.sampled_from([None, "a", "b"]),
        "link": st.sampled_from([None, "/x"]),
        "mode": st.sampled_from([None, "0644", "0600"]),
        "owner": st.just("root:root"),
    },
    "AptSource": {"present": st.booleans(), "uri": st.sampled_from([None, "file:/a", "file:/b"])},
    "DebianPackage": {
        "version": st.sampled_from([None, "1.0", "1.1"]),
        "held": st.booleans(),
        "needed_by": st.lists(st.sampled_from(["one", "two"]), unique=True).map(sorted),
    },
    "CdiSpec": {"present": st.booleans(), "fresh": st.booleans(), "devices": st.just([])},
    "SystemdUnit": {
        "enabled": st.sampled_from(["enabled", "disabled", MAYBE]),
        "active": st.sampled_from([True, False, MAYBE]),
    },
}


def test_the_nouns_are_those_that_can_be_changed_in_the_order_of_changes() -> None:
    wishes = tuple(DesiredResource(noun, {}, {"x": 1}, noun, "") for noun in sorted(on_linux.NOUNS))
    facts = Facts("h", "synthetic", "", "", {noun: (Record({"x": 0}),) for noun in on_linux.NOUNS})
    assert [step.noun for step in steps_for(wishes, facts)] == list(on_linux.NOUNS)
    assert [step.noun for step in steps_for(wishes, facts, backwards=True)] == list(reversed(on_linux.NOUNS))
    assert set(on_linux.NOUNS) == {noun.name for noun in LINUX.values() if noun.sets}
    assert set(on_linux.READ_ONLY) == {noun.name for noun in LINUX.values() if not noun.sets}
    assert set(on_linux.NOUNS.values()) == set(on_linux.RULES)


def test_no_noun_asks_for_more_than_it_does() -> None:
    plain = ResourceType("Plain", "plain things")
    for noun in LINUX.values():
        assert not noun.restarts
        assert not noun.asks
        assert noun.absent is None
        assert (noun.needs, noun.risks) == (plain.needs, plain.risks)


def test_what_rests_on_each_is_the_same() -> None:
    assert {noun.name: tuple(map(as_here, noun.rests)) for noun in LINUX.values() if noun.rests} == on_linux.RESTS


def as_here(rule: Rests) -> dict[str, Any]:
    """All that such a rule says there; more than that no rule of Linux may say."""
    name, values = (rule.at[0], [rule.at[1]]) if rule.at else (rule.unless or ("", ()))
    assert rule == Rests(rule.noun, at=rule.at, unless=rule.unless, since=())
    return {"noun": rule.noun, "property": name, "values": list(values), "with": rule.at is not None}


@pytest.mark.parametrize("noun", on_linux.NOUNS)
@given(data=st.data())
def test_what_is_taken_back_is_the_same(noun: str, data: st.DataObject) -> None:
    states = st.fixed_dictionaries(STATES[noun])
    before, after, now, moved = (data.draw(states) for _ in range(4))
    sets = [name for name in STATES[noun] if name in LINUX[noun].sets]
    changed = data.draw(st.lists(st.sampled_from(sets), min_size=1, unique=True))
    on_the_way = {name: now[name] for name in changed if moved[name] == now[name]}
    expected: tuple[Any, ...]
    try:
        ours = LINUX[noun].undo({name: before[name] for name in changed}, {**after, **on_the_way}, now)
        expected = (ours.reason, dict(ours.rest), False) if isinstance(ours, Keep) else ("", dict(ours), False)
    except MissingFact:
        expected = ("", {}, True)
    touched = {"before": before, "after": after, "changed": changed, "moved": [moved]}
    undo = on_linux.RULES[on_linux.NOUNS[noun]](touched, now)
    assert (undo.keep, undo.want, undo.lacks != "") == expected


CHECKS: tuple[Callable[[Script], Iterator[str]], ...] = (
    is_no_python_of_the_oldest,
    needs_more_than_the_standard_library,
    is_not_plain_text,
)


def test_it_can_be_read_where_it_is_to_run() -> None:
    assert [fault for check in CHECKS for fault in check(SCRIPT)] == []
    assert f'WINHOST = "{__version__}"' in SCRIPT.text
