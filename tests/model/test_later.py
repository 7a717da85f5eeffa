"""A lazy sequence is a tuple to every reader, and is computed once."""

from copy import deepcopy
from dataclasses import dataclass

import pytest

from winhost.model.documents import plain
from winhost.model.lazy import LazySequence


def test_nothing_is_made_before_somebody_looks() -> None:
    made: list[str] = []
    later = LazySequence(lambda: made.append("made") or (1, 2))
    assert made == []
    assert (len(later), later[0], later[1:], list(later)) == (2, 1, (2,), [1, 2])
    assert made == ["made"]


def test_it_compares_hashes_copies_and_shows_as_its_tuple() -> None:
    later = LazySequence(lambda: (1, 2))
    assert later == (1, 2)
    assert later == LazySequence(lambda: [1, 2])
    assert later != (1, 3)
    assert later != "12"
    assert hash(later) == hash((1, 2))
    assert isinstance(deepcopy(later), tuple)
    assert repr(later) == "(1, 2)"


def test_documents_hold_what_it_is() -> None:
    @dataclass(frozen=True)
    class Holder:
        told: object

    assert plain(Holder(LazySequence(lambda: ("a",)))) == {"told": ["a"]}


def test_a_fault_on_making_reaches_whoever_looks() -> None:
    def make() -> tuple[int, ...]:
        raise ZeroDivisionError

    later = LazySequence(make)
    with pytest.raises(ZeroDivisionError):
        len(later)
