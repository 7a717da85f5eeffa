"""The Windows part of a dual boot, run by hand: the same states as those of a run, and an exact rollback."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.test_dual_boot import DATA, PASSWORD, STAGED, TYPED, plan
from tests.engine.world import World
from tests.powershell.bundles import ByHand, Person, a_person, twin, unpack
from tests.powershell.twins import machine
from winhost.engine.store import Store
from winhost.lab.physics.lab_section import LabClock
from winhost.lab.physics.simulated_machine import Machine

HOST = "win11-pro-1gpu"


@pytest.fixture(scope="module")
def person() -> Iterator[Person]:
    with a_person(machine(HOST)) as one:
        yield one


def protected() -> Machine:
    made = machine(HOST)
    made.clock = LabClock(0)
    return made


def by_hand(person: Person, folder: Path) -> tuple[ByHand, Path, World]:
    other = World(protected(), Store(folder / "store"), "desk-01")
    here = ByHand(person, twin(other.machine), folder / "journals")
    return here, unpack(plan(other, **TYPED, **STAGED), folder / "bundle"), other


def test_it_is_applied_by_hand_as_by_a_run_and_goes_without_a_trace(
    person: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINHOST_LAST_GROUP", "888888")
    before = protected().comparable_state()
    here, bundle, other = by_hand(person, tmp_path)
    person.run(here.machine, _set_variable(tmp_path, "888888"))
    assert here.through(lambda path: here.apply(path, accept=DATA), bundle).said["outcome"] == "applied"
    other.apply(plan(other, **TYPED, **STAGED), DATA)
    told = [path.read_text("utf-8") for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".ps1"]
    assert not [text for text in told if "888888" in text or PASSWORD in text]
    assert here.through(lambda path: here.rollback(path, accept=DATA), bundle).said["outcome"] == "rolled back"
    assert here.state() == before


def test_without_the_digits_nothing_is_changed(person: Person, tmp_path: Path) -> None:
    here, bundle, _ = by_hand(person, tmp_path)
    person.run(here.machine, _set_variable(tmp_path, ""))
    assert here.apply(bundle, accept=DATA).refused == "SecretUnreadable"
    assert here.state() == protected().comparable_state()


def _set_variable(folder: Path, value: str) -> Path:
    script = folder / "variable.ps1"
    script.write_text(
        f"[System.Environment]::SetEnvironmentVariable('WINHOST_LAST_GROUP', '{value}')\nexit 0\n", "ascii"
    )
    return script
