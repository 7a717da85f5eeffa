"""Abandoned before and after every journal line: going on ends as the straight run, going back where it began."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.engine.world import PLAYBOOK, World, world
from winhost.engine.journal import read_journal
from winhost.engine.planning import make_plan
from winhost.model.plan import Plan, PlanRequest
from winhost.paths.path_request import parse_request
from winhost.resources.host import HostFacts

# Without the role the run restarts and has two stages; with it a VM runs whose power has to be as it was.
HOSTS = ("server2025-3gpu", "server2025-role-installed")
INSTALLED = "server2025-role-installed"
SOME = pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.costly)])


class Abandoned(BaseException):
    """The controller is gone from here on; nothing catches it."""


@dataclass(frozen=True)
class Straight:
    """A run that nobody abandoned. there, back: lines once it is applied, and once it is rolled back.

    plan: the same for every such host, so that no other is made for each line.
    """

    host: str
    plan: Plan
    there: int
    back: int
    found: dict[str, Any]
    made: dict[str, Any]


def lines_of(here: World) -> int:
    return here.store.path(here.run).read_bytes().count(b"\n")


@pytest.fixture(scope="module", params=HOSTS)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Straight:
    return straight(tmp_path_factory.mktemp("straight"), request.param)


def straight(folder: Path, host: str) -> Straight:
    here = world(folder, host)
    found, plan = here.state(), here.plan()
    assert here.apply(plan).holds
    there, made = lines_of(here), here.state()
    assert_gives_back(here, found, "straight")
    return Straight(host, plan, there, lines_of(here), found, made)


def assert_gives_back(here: World, found: dict[str, Any], at: object) -> None:
    outcome = here.rollback()
    assert (outcome.outcome, outcome.kept) == ("rolled back", ()), at
    assert here.state() == found, at


def crash_points(begin: int, end: int) -> list[tuple[int, str]]:
    return [(line, when) for line in range(begin, end + 1) for when in ("before", "after")]


def abandon(here: World, line: int, when: str, do: Callable[[], object]) -> None:
    """Do this until the journal has this line; it must come so far."""

    def around(moment: str, entry: Any) -> None:
        if (entry["n"], moment) == (line, when):
            raise Abandoned

    here.around = around
    with pytest.raises(Abandoned):
        do()
    here.around = lambda moment, entry: None


def there_and_back(here: World, plan: Plan) -> None:
    here.apply(plan)
    here.rollback()


def abandoned_run(folder: Path, straight: Straight, line: int, when: str) -> World:
    here = world(folder / f"{line}-{when}", straight.host)
    abandon(here, line, when, partial(here.apply, straight.plan))
    return here


def test_the_straight_run_changes_the_host_and_gives_it_back(reference: Straight) -> None:
    assert reference.found != reference.made
    assert reference.there > 20
    assert reference.back > reference.there + 20


@SOME
def test_going_on_after_a_crash_ends_where_the_straight_run_ends(
    tmp_path: Path, reference: Straight, every: int
) -> None:
    for line, when in crash_points(1, reference.there)[::every]:
        here = abandoned_run(tmp_path, reference, line, when)
        if not here.store.runs():
            assert here.state() == reference.found, (line, when)
            continue
        assert here.resume().holds, (line, when)
        assert here.state() == reference.made, (line, when)
        assert_gives_back(here, reference.found, (line, when))


@SOME
def test_going_back_after_a_crash_ends_where_it_began(tmp_path: Path, reference: Straight, every: int) -> None:
    for line, when in crash_points(1, reference.there)[::every]:
        here = abandoned_run(tmp_path, reference, line, when)
        if here.store.runs():
            assert_gives_back(here, reference.found, (line, when))
        assert here.state() == reference.found, (line, when)


@SOME
def test_going_back_survives_a_crash_of_its_own(tmp_path: Path, reference: Straight, every: int) -> None:
    for line, when in crash_points(reference.there + 1, reference.back)[::every]:
        here = world(tmp_path / f"{line}-{when}", reference.host)
        abandon(here, line, when, partial(there_and_back, here, reference.plan))
        assert_gives_back(here, reference.found, (line, when))


@pytest.mark.costly
@pytest.mark.parametrize("again", [1, 2, 5, 8, 11])
def test_going_back_after_two_crashes_on_the_way_there_ends_where_it_began(tmp_path: Path, again: int) -> None:
    run = straight(tmp_path / "straight", INSTALLED)
    for line in range(2, run.there - again + 1, 2):
        here = abandoned_run(tmp_path, run, line, "after")
        abandon(here, line + again, "after", here.resume)
        assert_gives_back(here, run.found, (line, again))


@pytest.mark.costly
@pytest.mark.parametrize("again", [2, 3, 7])
def test_going_back_survives_two_crashes_of_its_own(tmp_path: Path, again: int) -> None:
    run = straight(tmp_path / "straight", INSTALLED)
    for line in range(run.there + 1, run.back - again + 1, 2):
        here = world(tmp_path / str(line), INSTALLED)
        abandon(here, line, "after", partial(there_and_back, here, run.plan))
        abandon(here, line + again, "after", here.rollback)
        assert_gives_back(here, run.found, (line, again))


@SOME
def test_a_vm_that_was_stopped_for_other_steps_alone_runs_again_after_a_crash(tmp_path: Path, every: int) -> None:
    """Nothing requests its power to be anything: who goes on finds it off, and must not take that for how it was."""
    here = world(tmp_path / "straight", INSTALLED)
    plan = need_only(here)
    here.apply(plan)
    made = here.state()
    for line, when in crash_points(2, lines_of(here))[::every]:
        here = world(tmp_path / f"{line}-{when}", INSTALLED)
        found = here.state()
        abandon(here, line, when, partial(here.apply, plan))
        assert here.resume().outcome == "applied", (line, when)
        assert here.state() == made, (line, when)
        assert_gives_back(here, found, (line, when))


def test_a_vm_that_was_given_back_and_stopped_by_somebody_since_stays_off(tmp_path: Path) -> None:
    here = world(tmp_path, INSTALLED)
    here.apply(need_only(here))
    begun = [entry["step"] for entry in read_journal(here.store.path(here.run)) if entry["event"] == "begin"]
    assert [step["role"] for step in begun if step["resource"] == "VmPower"] == ["need", "restore"]
    here.store.path(here.run).write_bytes(cut(here.store.path(here.run).read_bytes(), 2))
    here.machine.stop_vm(here.vm(), within=300)
    assert here.resume().changed == 0
    assert here.machine.vms[here.vm()].power == "off"


def test_what_is_given_back_after_a_crash_is_called_so(tmp_path: Path) -> None:
    here = world(tmp_path, INSTALLED)
    abandon(here, 3, "after", partial(here.apply, need_only(here)))
    here.resume()
    begun = [entry["step"] for entry in read_journal(here.store.path(here.run)) if entry["event"] == "begin"]
    assert [step["role"] for step in begun if step["resource"] == "VmPower"] == ["need", "restore"]


def cut(journal: bytes, lines: int) -> bytes:
    return b"".join(journal.splitlines(keepends=True)[:-lines])


def need_only(here: World) -> Plan:
    resources = [desired for desired in PLAYBOOK["resources"] if desired["resource"] != "VmPower"]
    request = parse_request(PlanRequest("dda", {**PLAYBOOK, "resources": resources}, "llm-01"))
    return make_plan(HostFacts(here.facts()), request)
