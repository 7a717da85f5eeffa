"""What holds of every undoing, whatever a resource declares."""

from collections.abc import Mapping

import pytest
from hypothesis import given

from tests.core.declared import UNKNOWN, Case, cases
from winhost.core.answers import Json, MissingFact
from winhost.core.undo import Keep, Undo


def put_back(undo: Undo | MissingFact) -> Mapping[str, Json]:
    if isinstance(undo, MissingFact):
        return {}
    return undo.still_restored if isinstance(undo, Keep) else undo


def goal(case: Case) -> Mapping[str, Json]:
    """What the run changed, as it is to be once it is put back."""
    instead = case.rules.undo.instead
    swaps = {name: pair[1] for name, pair in instead.items() if name in case.changed and case.before[name] == pair[0]}
    return {**case.found, **swaps}


@pytest.mark.costly
@given(case=cases())
def test_what_is_as_found_needs_nothing(case: Case) -> None:
    assert put_back(case.undo({**case.now, **case.found, **goal(case)})) == {}


@given(case=cases())
def test_only_what_differs_is_put_back(case: Case) -> None:
    assert all(case.now[name] != value for name, value in put_back(case.undo()).items())


@pytest.mark.costly
@given(case=cases())
def test_nothing_is_put_back_but_as_it_was_found_or_as_what_is_not_there(case: Case) -> None:
    absent = case.rules.undo.remove_if_created
    undone = put_back(case.undo())
    assert undone.items() <= goal(case).items() if not absent else undone.keys() <= {*case.changed, *absent}


@given(case=cases())
def test_what_others_changed_stays_unless_the_resource_says_otherwise(case: Case) -> None:
    rule = case.rules.undo
    if not (rule.unconditional or rule.transitional_states or rule.remove_if_created):
        assert all(case.now[name] == case.left[name] for name in put_back(case.undo()))


@pytest.mark.costly
@given(case=cases())
def test_once_it_is_put_back_nothing_is_left_to_do(case: Case) -> None:
    undo = case.undo()
    gone = isinstance(undo, Mapping) and undo.items() <= case.rules.undo.remove_if_created.items()
    # What was made goes with all that it has.
    now = {**case.now, **(goal(case) if gone else {}), **put_back(undo)}
    assert put_back(case.undo(now)) == {}


@given(case=cases())
def test_what_is_kept_as_a_whole_is_not_touched(case: Case) -> None:
    undo = case.undo()
    if isinstance(undo, Keep) and "changed since" in undo.reason and case.rules.undo.whole:
        assert undo.still_restored == {}
    if isinstance(undo, Keep) and undo.reason.startswith("kept for"):
        assert undo.still_restored == {}


@given(case=cases())
def test_what_cannot_be_read_is_never_judged_by(case: Case) -> None:
    if any(case.now[name] == UNKNOWN for name in case.changed):
        assert isinstance(case.undo(), MissingFact)
    assert UNKNOWN not in put_back(case.undo()).values()
