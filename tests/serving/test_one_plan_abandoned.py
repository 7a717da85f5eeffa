"""One plan from Windows to an endpoint, abandoned where one part ends and the next begins: on, and back."""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.engine.guest_world import GuestWorld
from tests.engine.test_crashes import abandon, lines_of
from tests.engine.wsl2_world import Wsl2World
from tests.hub.stand_in_hub import StandInHub
from tests.serving.one_plan import CONSENTS, hub_of_model, inside, join, windows
from winhost.engine.journal import read_journal
from winhost.lab.linux.served_engines import ServedEngines
from winhost.model.plan import Plan
from winhost.resources.registry import LINUX

Entry = Mapping[str, Any]

# Hosts that lack what needs a restart: features of Windows here, the Hyper-V role there.
HOSTS = {"wsl2": "win11-hyperv-off-vbs-on", "dda": "server2025-3gpu"}


@dataclass(frozen=True)
class Straight:
    """A run that nobody abandoned. journal: up to the endpoint; back: lines once it is rolled back; found, made: the
    host as it was found, and with its endpoint.
    """

    path: str
    hub: StandInHub
    plan: Plan
    journal: tuple[Entry, ...]
    back: int
    found: dict[str, Any]
    made: dict[str, Any]


def fresh(folder: Path, path: str) -> Wsl2World | GuestWorld:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return windows(folder, path, HOSTS[path])


def state(here: Wsl2World | GuestWorld) -> dict[str, Any]:
    """Also of the Linux that came, as far as the stack goes: its engines, and each file of it."""
    found = here.state()
    there = here.inside.linux if isinstance(here, Wsl2World) and found["linux"] else None
    if isinstance(here, GuestWorld) and any(vm.name == "llm-02" for vm in here.machine.vms.values()):
        there = inside(here)
    if there is None:
        return found
    return deepcopy({**found, "engines": there.part(ServedEngines).units, "files in it": there.files})


@pytest.fixture(scope="module", params=HOSTS)
def straight(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Straight]:
    with hub_of_model() as hub:
        folder, path = tmp_path_factory.mktemp("straight"), request.param
        here = fresh(folder, path)
        found = here.state()
        join(here, folder, hub)
        plan = here.plan()
        assert here.apply(plan, CONSENTS).holds
        journal, made = tuple(read_journal(here.store.path(here.run))), state(here)
        assert here.rollback(CONSENTS).outcome == "rolled back"
        assert here.state() == found
        yield Straight(path, hub, plan, journal, lines_of(here), found, made)


def steps(journal: tuple[Entry, ...]) -> list[Entry]:
    return [entry for entry in journal if entry["event"] == "begin"]


def is_of_linux(entry: Entry) -> bool:
    return entry["step"]["resource"] in LINUX


def first(entries: list[Entry], holds: Callable[[Entry], bool]) -> int:
    return int(next(entry["n"] for entry in entries if holds(entry)))


def event(name: str) -> Callable[[tuple[Entry, ...]], int]:
    return lambda journal: first([*journal], lambda entry: entry["event"] == name)


def begins(resource: str, title: str = "") -> Callable[[tuple[Entry, ...]], int]:
    return lambda journal: first(
        steps(journal), lambda entry: entry["step"]["resource"] == resource and title in entry["step"]["title"]
    )


def last_of_windows(journal: tuple[Entry, ...]) -> int:
    """The end of the last step of Windows before the stack's first one: in a guest, Windows has its turn again."""
    (at,) = (place for place, each in enumerate(steps(journal)) if each["n"] == first_of_stack(journal))
    before = [each for each in steps(journal)[:at] if not is_of_linux(each)]
    return int(before[-1]["n"]) + 1


def first_of_linux(journal: tuple[Entry, ...]) -> int:
    return first(steps(journal), is_of_linux)


def first_of_stack(journal: tuple[Entry, ...]) -> int:
    return begins("LinuxFile", "What is served")(journal)


SEAMS: dict[str, Callable[[tuple[Entry, ...]], int]] = {
    "the host restarts": event("restarting"),
    "the host is back": event("restarted"),
    "the last step of Windows": last_of_windows,
    "the first step in the Linux": first_of_linux,
    "the first step of the stack": first_of_stack,
    "the image of the engine": begins("ContainerImage"),
    "the gateway starts": begins("SystemdUnit", "gateway"),
    "an engine starts": begins("EngineUnit"),
    "the endpoint is waited for": begins("ServingReady"),
}
POINTS = {f"{when} {name}": (seam, when) for name, seam in SEAMS.items() for when in ("before", "after")}
Point = tuple[Callable[[tuple[Entry, ...]], int], str]


def abandoned(folder: Path, run: Straight, point: Point) -> Wsl2World | GuestWorld:
    seam, when = point
    here = fresh(folder, run.path)
    abandon(here, seam(run.journal), when, partial(here.apply, run.plan, CONSENTS))
    return here


def assert_gives_back(here: Wsl2World | GuestWorld, run: Straight) -> None:
    outcome = here.rollback(CONSENTS)
    assert (outcome.outcome, outcome.kept, outcome.missing) == ("rolled back", (), ())
    assert here.state() == run.found


@pytest.mark.costly
@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
def test_resumed_it_ends_at_the_same_endpoint_and_goes_back(tmp_path: Path, straight: Straight, point: Point) -> None:
    here = abandoned(tmp_path, straight, point)
    outcome = here.resume(CONSENTS)
    assert (outcome.outcome, outcome.holds, len(here.store.runs())) == ("applied", True, 1)
    assert inside(here).part(ServedEngines).serves()
    assert state(here) == straight.made
    assert_gives_back(here, straight)


@pytest.mark.costly
@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
def test_rolled_back_at_once_nothing_of_it_is_left(tmp_path: Path, straight: Straight, point: Point) -> None:
    assert_gives_back(abandoned(tmp_path, straight, point), straight)


@pytest.mark.parametrize("every", [40, pytest.param(1, marks=pytest.mark.crash)])
def test_going_back_survives_a_crash_of_its_own(tmp_path: Path, straight: Straight, every: int) -> None:
    for line in range(len(straight.journal) + 2, straight.back + 1, every):
        here = fresh(tmp_path / str(line), straight.path)
        here.apply(straight.plan, CONSENTS)
        abandon(here, line, "after", partial(here.rollback, CONSENTS))
        assert_gives_back(here, straight)
