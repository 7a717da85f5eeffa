"""A run that is killed at any moment ends as if it had not been, or where it began: in every world, by one harness."""

import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.crash import Choice, Moment, Straight, at_each, differences, kill, line, photographs
from tests.engine.crash_cases import CASES, INSTALLED, NOT_ROOT, power_for_others_alone
from tests.engine.world import World, world
from winhost.engine.journal import read_journal

pytestmark = pytest.mark.timeout(7200)  # a world is killed at each of its hundred moments in one test


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`make test` kills one world of each kind, which the first word of its name says. The commit decides which one."""
    if "straight" not in metafunc.fixturenames:
        return
    kinds = defaultdict[str, list[str]](list)
    for name in (name for name, case in CASES.items() if not case.costly):
        kinds[name.split()[0].strip(",")].append(name)
    chance = random.Random(metafunc.config.option.costly_seed)
    chosen = {chance.choice(names) for names in kinds.values()}
    worlds = [
        pytest.param(
            name, marks=[*([NOT_ROOT] if case.root else []), *([] if name in chosen else [pytest.mark.costly])]
        )
        for name, case in CASES.items()
    ]
    metafunc.parametrize("straight", worlds, indirect=True, scope="module")


@pytest.fixture(scope="module")
def straight(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Straight]:
    name, options = request.param, request.config.option
    folder = tmp_path_factory.mktemp("straight")
    with CASES[name].make(folder / "world") as here:
        yield Straight(CASES[name], folder / "copies", here, Choice(options.costly, f"{options.costly_seed} {name}"))


@pytest.mark.costly
def test_killed_and_resumed_it_ends_where_the_straight_run_ends(straight: Straight) -> None:
    def check(moment: Moment) -> None:
        here = straight.killed("there", moment)
        if here.begun:
            straight.resume(here)
            straight.roll_back(here)

    at_each(straight.moments["there"], check)


@pytest.mark.costly
def test_killed_and_rolled_back_it_ends_where_it_began(straight: Straight) -> None:
    def check(moment: Moment) -> None:
        here = straight.killed("there", moment)
        if here.begun:
            straight.roll_back(here)
        straight.is_as_found(here)

    at_each(straight.moments["there"], check)


@pytest.mark.costly
def test_a_rollback_that_was_killed_ends_where_it_began(straight: Straight) -> None:
    at_each(straight.moments["back"], lambda moment: straight.roll_back(straight.killed("back", moment)))


@pytest.mark.costly
def test_killed_twice_it_goes_on_and_back(straight: Straight, tmp_path: Path) -> None:
    """Whoever resumes is killed, too, or whoever rolls back."""
    seconds = straight.choice.sample(range(1, 24), 2 if straight.choice.dial == "few" else 5)

    def rolls_back(here: Any, folder: Path) -> None:
        for left in photographs(here, here.rollback, seconds, folder).values():
            straight.roll_back(left)

    def goes_on_and_back(moment: Moment) -> None:
        here, folder = straight.killed("there", moment), tmp_path / str(moment.number)
        rolls_back(straight.copy(here), folder / "back")
        for left in photographs(here, lambda: straight.case.resume(here), seconds, folder / "on").values():
            straight.resume(straight.copy(left))
            straight.roll_back(left)

    at_each(straight.moments["there"][1::4], goes_on_and_back)
    at_each(
        straight.moments["back"][1::4],
        lambda moment: rolls_back(straight.killed("back", moment), tmp_path / f"back {moment.number}"),
    )


@pytest.mark.costly
def test_a_copy_is_what_a_killed_controller_leaves_and_goes_its_own_way(straight: Straight) -> None:
    """Else the other tests would prove nothing."""
    for way, before in (("there", straight.found), ("back", straight.made)):
        for moment in straight.choice.sample(straight.moments[way], 3):
            copied, killed = straight.killed(way, moment), straight.really_killed(way, moment)
            state = straight.case.state(killed)
            assert not differences(straight.case.state(copied), state), moment
            assert copied.begun == killed.begun
            if copied.begun:
                straight.roll_back(copied)
            assert not differences(straight.case.state(killed), state), moment
        assert not differences(straight.case.state(straight.starts[way]), before)


# ---- a VM that is stopped for other steps alone


def roles_of_power(here: World) -> list[str]:
    begun = [entry["step"] for entry in read_journal(here.store.path(here.run)) if entry["event"] == "begin"]
    return [step["role"] for step in begun if step["resource"] == "VmPower"]


def test_a_vm_that_was_started_again_and_that_somebody_stopped_since_stays_off(tmp_path: Path) -> None:
    here = world(tmp_path, INSTALLED)
    here.apply(power_for_others_alone(here))
    assert roles_of_power(here) == ["need", "restore"]
    journal = here.store.path(here.run)
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-2]))
    here.machine.stop_vm(here.vm(), timeout=300)
    assert here.resume().changed == 0
    assert here.machine.vms[here.vm()].power == "off"


def test_a_restart_of_a_vm_after_a_crash_is_called_so(tmp_path: Path) -> None:
    here = world(tmp_path, INSTALLED)
    plan = power_for_others_alone(here)
    kill(here, lambda: here.apply(plan), line(3))
    here.resume()
    assert roles_of_power(here) == ["need", "restore"]
