"""A bundle with a feature, a file, WSL and a driver model does by hand what a run does, and keeps what it keeps."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.test_software import plan
from tests.engine.world import World, world
from tests.powershell.bundles import ByHand, Person, a_person, twin, unpack
from tests.powershell.twins import machine

HOST = "server2025-role-installed"


@pytest.fixture(scope="module")
def person() -> Iterator[Person]:
    with a_person(machine(HOST)) as one:
        yield one


def applied(person: Person, folder: Path, found: str | None = None) -> tuple[ByHand, Path, World]:
    """Twice the same plan, applied; found: the version of WSL that was there before."""
    other = world(folder / "store", HOST)
    other.machine.software.wsl = found
    here = ByHand(person, twin(other.machine), folder / "journals")
    made = plan(other)
    bundle = unpack(made, folder / "bundle")
    assert here.through(here.apply, bundle).said["outcome"] == "applied"
    assert other.apply(made).holds
    assert here.state() == other.state()
    return here, bundle, other


def rolled_back(here: ByHand, bundle: Path, other: World) -> list[str]:
    """Return the records that both have."""
    said, outcome = here.through(here.rollback, bundle).said, other.rollback()
    assert here.state() == other.state()
    assert sorted(said["kept"]) == sorted(outcome.kept)
    assert said["outcome"] == outcome.outcome
    return sorted(outcome.kept)


def test_it_comes_and_goes_without_a_trace(person: Person, tmp_path: Path) -> None:
    before = machine(HOST).comparable_state()
    here, bundle, other = applied(person, tmp_path)
    assert rolled_back(here, bundle, other) == []
    assert here.state() == before


def test_an_upgrade_stays(person: Person, tmp_path: Path) -> None:
    assert rolled_back(*applied(person, tmp_path, "2.6.1.0")) == ["Wsl: kept: winhost never downgrades WSL"]


def test_wsl_that_updated_itself_keeps_the_platform(person: Person, tmp_path: Path) -> None:
    here, bundle, other = applied(person, tmp_path)
    here.machine.software.wsl = other.machine.software.wsl = "2.8.1.0"
    assert len(rolled_back(here, bundle, other)) == 2


def test_a_feature_goes_back_before_its_restart(person: Person, tmp_path: Path) -> None:
    other = world(tmp_path / "store", HOST)
    here = ByHand(person, twin(other.machine), tmp_path / "journals")
    before = here.state()
    bundle = unpack(plan(other), tmp_path / "bundle")
    here.apply(bundle)
    assert here.state()["VirtualMachinePlatform"][0]["state"] == {"feature": "install-pending"}
    assert here.through(here.rollback, bundle).said["outcome"] == "rolled back"
    assert here.state() == before
