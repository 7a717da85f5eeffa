"""What run.py knows of the resources of Linux is what the engine knows, and its text can be read where it is to run."""

from collections.abc import Callable, Iterator
from pathlib import Path
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
from winhost.bundle import linux_run
from winhost.bundle.bundle_files import linux_script
from winhost.core.answers import MissingFact, Record
from winhost.core.rules import Rests
from winhost.core.steps import DesiredResource
from winhost.core.undo import Keep, find_undo
from winhost.engine.host_steps import steps_on
from winhost.model.facts import Facts
from winhost.resources.base import ResourceType
from winhost.resources.registry import LINUX, RULES

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


def test_the_resources_are_those_that_can_be_changed_in_the_order_of_changes() -> None:
    goals = tuple(DesiredResource(resource, {}, {"x": 1}, resource, "") for resource in sorted(linux_run.RESOURCES))
    facts = Facts("h", "synthetic", "", "", {resource: (Record({"x": 0}),) for resource in linux_run.RESOURCES})
    assert [step.resource for step in steps_on(facts, goals)] == list(linux_run.RESOURCES)
    assert [step.resource for step in steps_on(facts, goals, backwards=True)] == list(reversed(linux_run.RESOURCES))
    assert set(linux_run.RESOURCES) == {resource.name for resource in LINUX.values() if resource.sets}
    assert set(linux_run.READ_ONLY) == {resource.name for resource in LINUX.values() if not resource.sets}
    assert set(linux_run.RESOURCES.values()) == set(linux_run.RULES)


def test_no_resource_asks_for_more_than_it_does() -> None:
    plain = ResourceType("Plain", "plain things")
    for resource in LINUX.values():
        assert not resource.restarts
        assert not resource.asks
        assert resource.absent is None
        assert (resource.needs, resource.risks) == (plain.needs, plain.risks)


def test_what_rests_on_each_is_the_same() -> None:
    assert {
        resource.name: tuple(map(as_here, resource.rests)) for resource in LINUX.values() if resource.rests
    } == linux_run.RESTS


def as_here(rule: Rests) -> dict[str, Any]:
    """All that such a rule says there; more than that no rule of Linux may say."""
    name, values = (rule.at[0], [rule.at[1]]) if rule.at else (rule.unless or ("", ()))
    assert rule == Rests(rule.resource, at=rule.at, unless=rule.unless, since=())
    return {"resource": rule.resource, "property": name, "values": list(values), "with": rule.at is not None}


@pytest.mark.parametrize("resource", linux_run.RESOURCES)
@given(data=st.data())
def test_what_is_taken_back_is_the_same(resource: str, data: st.DataObject) -> None:
    states = st.fixed_dictionaries(STATES[resource])
    before, after, now, moved = (data.draw(states) for _ in range(4))
    sets = [name for name in STATES[resource] if name in LINUX[resource].sets]
    changed = data.draw(st.lists(st.sampled_from(sets), min_size=1, unique=True))
    on_the_way = {name: now[name] for name in changed if moved[name] == now[name]}
    expected: tuple[Any, ...]
    try:
        ours = find_undo(RULES[resource], {name: before[name] for name in changed}, {**after, **on_the_way}, now)
        expected = (ours.reason, dict(ours.rest), False) if isinstance(ours, Keep) else ("", dict(ours), False)
    except MissingFact:
        expected = ("", {}, True)
    touched = {"before": before, "after": after, "changed": changed, "transitional": [moved]}
    undo = linux_run.RULES[linux_run.RESOURCES[resource]](touched, now)
    assert (undo.keep, undo.desired, undo.unread != "") == expected


CHECKS: tuple[Callable[[Script], Iterator[str]], ...] = (
    is_no_python_of_the_oldest,
    needs_more_than_the_standard_library,
    is_not_plain_text,
)


def test_it_can_be_read_where_it_is_to_run() -> None:
    assert [fault for check in CHECKS for fault in check(SCRIPT)] == []
    assert f'WINHOST = "{__version__}"' in SCRIPT.text


def test_a_journal_of_version_1_is_read_in_the_words_of_today() -> None:
    path = Path(__file__).parents[1] / "data/v1/bundle-journals/0b91003d0bf1b77c.20261122-161703-612.jsonl"
    read = linux_run.parse_journal(path.stem, path.read_bytes()).record
    assert (read.outcome, read.back) == ("applied", False)
    assert {each["resource"] for each in read.touched.values()} <= set(linux_run.RESOURCES)
    assert all(each["after"] for each in read.touched.values())
