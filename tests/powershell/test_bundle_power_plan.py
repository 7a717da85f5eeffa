"""A bundle keeps a host awake by hand as a run does, and gives its power plan back by the GUID of its scheme."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from tests.engine.world import PLAYBOOK, World
from tests.powershell.bundles import ByHand, Person, a_person, twin, unpack
from tests.powershell.twins import machine
from winhost.engine.planning import make_plan
from winhost.engine.store import Store
from winhost.lab.physics.lab_section import LabClock
from winhost.lab.physics.parts import SetCall
from winhost.lab.physics.simulated_machine import Machine
from winhost.model.plan import PlanRequest
from winhost.paths.playbook import parse_request
from winhost.resources.host import HostFacts

HOST = "server2025-role-installed"
BALANCED, FAST = "381b4222-f694-41f0-9685-ff5bb260df2e", "8c5e7fda-e8bf-4a96-9a85-a6e23a8c635c"
STATE = {"name": "Balanced", "active": True, "standby": 1800, "hibernate": 10800, "modern_standby": False}
PLANS = (
    {"key": {"scheme": BALANCED}, "state": STATE},
    {"key": {"scheme": FAST}, "state": {**STATE, "name": "High performance", "active": False, "standby": 0}},
)


@pytest.fixture(scope="module")
def person() -> Iterator[Person]:
    with a_person(machine(HOST)) as one:
        yield one


def sleepy() -> Machine:
    made = machine(HOST, hidden={"PowerPlan": PLANS})
    made.clock = LabClock(0)
    return made


def applied(person: Person, folder: Path) -> tuple[ByHand, Path, World]:
    other = World(sleepy(), Store(folder / "store"), "gpu-03")
    here = ByHand(person, twin(other.machine), folder / "journals")
    request = PlanRequest("dda", {**PLAYBOOK, "settings": {"never_sleep": True}}, "llm-01")
    made = make_plan(HostFacts(other.facts()), parse_request(request))
    bundle = unpack(made, folder / "bundle")
    assert here.through(here.apply, bundle).said["outcome"] == "applied"
    assert other.apply(made).holds
    assert here.state() == other.state()
    assert seconds(here) == {BALANCED: (0, 0), FAST: (0, 10800)}
    return here, bundle, other


def seconds(here: ByHand) -> dict[str, tuple[object, object]]:
    found = here.state()["PowerPlan"]
    return {each["key"]["scheme"]: (each["state"]["standby"], each["state"]["hibernate"]) for each in found}


def test_it_is_verified_and_goes_without_a_trace(person: Person, tmp_path: Path) -> None:
    before = sleepy().comparable_state()
    here, bundle, other = applied(person, tmp_path)
    assert here.verify(bundle).code == 0
    assert here.through(here.rollback, bundle).said["outcome"] == other.rollback().outcome == "rolled back"
    assert here.state() == other.state() == before


def sleeps_after(on: Machine, seconds: int) -> None:
    """Change the plan as somebody else would."""
    wanted = SetCall("PowerPlan", {"scheme": BALANCED}, {"standby": seconds}, frozenset(), 60, Event())
    on.changes["PowerPlan"](wanted)


def test_what_somebody_changed_since_stays(person: Person, tmp_path: Path) -> None:
    here, bundle, other = applied(person, tmp_path)
    for each in (here.machine, other.machine):
        sleeps_after(each, 60)
        each.programs["powercfg.exe"](["/setactive", FAST])
    assert here.verify(bundle).code != 0
    kept = here.through(here.rollback, bundle).said["kept"]
    assert sorted(kept) == sorted(other.rollback().kept)
    assert any("standby changed since by somebody else" in line for line in kept)
    assert here.state() == other.state()
    assert seconds(here)[BALANCED] == (60, 10800)


def test_no_vm_is_stopped_for_what_needs_none_off(person: Person, tmp_path: Path) -> None:
    here, bundle, _ = applied(person, tmp_path)
    made = here.state()
    sleeps_after(here.machine, 1800)
    again = here.apply(bundle, accept=[]).said
    assert (again["outcome"], again["changed"]) == ("applied", 1)
    assert here.state() == made
