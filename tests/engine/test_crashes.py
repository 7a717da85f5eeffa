"""Abandoned before and after every journal line: going on ends as the straight run, going back where it began."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.world import World, world


class Abandoned(BaseException):
    """The controller is gone from here on; nothing catches it."""


def abandon_at(line: int, when: str) -> Any:
    def around(moment: str, entry: Any) -> None:
        if (entry["n"], moment) == (line, when):
            raise Abandoned

    return around


def straight(folder: Path) -> tuple[World, dict[str, Any], dict[str, Any]]:
    here = world(folder)
    found = here.state()
    outcome = here.apply(here.plan())
    assert (outcome.outcome, outcome.holds) == ("applied", True)
    return here, found, here.state()


def lines_of(here: World) -> int:
    return here.store.path(here.run).read_bytes().count(b"\n")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, int, dict[str, Any], dict[str, Any]]:
    """Lines of the straight run, lines once it is rolled back, the state found, the state made."""
    here, found, made = straight(tmp_path_factory.mktemp("straight"))
    there = lines_of(here)
    assert here.rollback().outcome == "rolled back"
    assert here.state() == found
    return there, lines_of(here), found, made


def crash_points(begin: int, end: int) -> list[tuple[int, str]]:
    return [(line, when) for line in range(begin, end + 1) for when in ("before", "after")]


def crash_while_applying(folder: Path, line: int, when: str) -> World:
    here = world(folder)
    plan = here.plan()
    here.around = abandon_at(line, when)
    with pytest.raises(Abandoned):
        here.apply(plan)
    here.around = lambda moment, entry: None
    return here


def test_the_straight_run_changes_the_host_and_gives_it_back(reference: Any) -> None:
    there, back, found, made = reference
    assert found != made
    assert there > 20
    assert back > there + 20


def test_going_on_after_a_crash_ends_where_the_straight_run_ends(tmp_path: Path, reference: Any) -> None:
    there, _, found, made = reference
    for line, when in crash_points(1, there):
        here = crash_while_applying(tmp_path / f"{line}-{when}", line, when)
        if not here.store.runs():
            assert here.state() == found, (line, when)
            continue
        assert here.resume().holds, (line, when)
        assert here.state() == made, (line, when)


def test_going_back_after_a_crash_ends_where_it_began(tmp_path: Path, reference: Any) -> None:
    there, _, found, _ = reference
    for line, when in crash_points(1, there):
        here = crash_while_applying(tmp_path / f"{line}-{when}", line, when)
        if here.store.runs():
            assert here.rollback().outcome == "rolled back", (line, when)
        assert here.state() == found, (line, when)


def test_going_back_survives_a_crash_of_its_own(tmp_path: Path, reference: Any) -> None:
    there, back, found, _ = reference
    for line, when in crash_points(there + 1, back):
        here, _, _ = straight(tmp_path / f"{line}-{when}")
        here.around = abandon_at(line, when)
        with pytest.raises(Abandoned):
            here.rollback()
        here.around = lambda moment, entry: None
        assert here.rollback().outcome == "rolled back", (line, when)
        assert here.state() == found, (line, when)
