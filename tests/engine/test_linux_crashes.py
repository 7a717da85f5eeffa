"""A Linux that gets its driver, abandoned before and after every line: going on and going back end as if straight."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.linux_world import LinuxWorld, linux_world
from tests.engine.test_crashes import abandon, assert_gives_back, crash_points, lines_of


def fresh(folder: Path) -> LinuxWorld:
    return linux_world(folder, "ubuntu-2xl4-no-driver")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Any, int, int]:
    """The plan, the host as it was found and as it is made, and the lines there and back."""
    here = fresh(tmp_path_factory.mktemp("straight"))
    found, plan = here.state(), here.plan()
    assert here.apply(plan).holds
    there, made = lines_of(here), here.state()
    assert_gives_back(here, found, "straight")
    return plan, found, made, there, lines_of(here)


def survive(folder: Path, straight: tuple[Any, Any, Any, int, int], line: int, when: str) -> None:
    plan, found, made, there, _ = straight
    here = fresh(folder / f"{line}-{when}")

    def both() -> None:
        here.apply(plan)
        here.rollback()

    abandon(here, line, when, both)
    if not here.store.runs():
        assert here.state() == found, (line, when)
        return
    if line <= there:
        assert here.resume().holds, (line, when)
        assert here.state() == made, (line, when)
    assert_gives_back(here, found, (line, when))


def test_abandoned_around_the_restarts_it_ends_where_the_straight_run_ends(tmp_path: Path, straight: Any) -> None:
    _, _, _, there, back = straight
    for line in (2, there - 8, there - 7, there, back - 4, back):
        survive(tmp_path, straight, line, "before")
        survive(tmp_path, straight, line, "after")


@pytest.mark.crash
def test_abandoned_at_every_line_it_ends_where_the_straight_run_ends(tmp_path: Path, straight: Any) -> None:
    for line, when in crash_points(1, straight[-1]):
        survive(tmp_path, straight, line, when)
