"""A download that the host makes is watched in slices, and goes on where it ended, as far as its server can."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.test_software import FILE, MSI, SOURCE, physics, plan
from tests.engine.world import World, world
from tests.errors import raises
from winhost.lab.contract.agent_answers import InjectedFault
from winhost.lab.physics.windows_errors import agent_error

WHOLE = 98  # bytes of the lab's stand-in for a file


@pytest.fixture
def here(tmp_path: Path) -> World:
    return world(tmp_path, "server2025-role-installed")


def source(here: World, **given: Any) -> None:
    physics(here, sources={SOURCE: given})


def percents(here: World) -> list[int | None]:
    return [event.percent for event in here.events if event.kind == "sending"]


def held(here: World) -> int:
    return here.machine.files.length(f"{here.machine.software.file_path(MSI, FILE['name'])}.part")


def test_it_is_told_how_far_it_is(here: World) -> None:
    found = here.state()
    source(here, piece=40)
    assert here.apply(plan(here)).holds
    assert percents(here) == [40, 81, 100]
    assert "fetched 0.0 of 0.0 MB" in next(event.text for event in here.events if event.kind == "sending")
    assert here.rollback().holds
    assert here.state() == found
    assert here.machine.software.registry_values == {}


def test_who_stops_it_goes_on_where_it_was(here: World) -> None:
    found = here.state()
    source(here, piece=40)
    here.stop = lambda: held(here) == 40
    with raises("Stopped"):
        here.apply(plan(here))
    assert here.state()["StagedFile"] == [{"key": FILE, "state": {"present": None}}]
    here.stop, here.events = (lambda: False), []
    assert here.resume().holds
    assert percents(here) == [40, 81, 100]
    assert here.rollback().holds
    assert here.state() == found


def test_a_part_of_it_is_taken_back(here: World) -> None:
    found = here.state()
    source(here, piece=40)
    here.stop = lambda: held(here) == 40
    with raises("Stopped"):
        here.apply(plan(here))
    here.stop = lambda: False
    assert here.rollback().outcome == "rolled back"
    assert here.state() == found
    assert here.machine.software.registry_values == {}


def test_a_server_that_never_sends_the_rest_is_asked_for_all_of_it(here: World) -> None:
    source(here, piece=40, ranges=False)
    assert here.apply(plan(here)).holds
    assert any("cannot go on in the middle" in event.text for event in here.events if event.kind == "note")


def test_another_version_each_time_is_left_to_the_step(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    etags = iter("abcdefghijklm")
    receive = here.machine.software.receive_slice

    def changing(*asked: str) -> Any:
        source(here, piece=40, etag=next(etags))
        return receive(*asked)

    monkeypatch.setattr(here.machine.software, "receive_slice", changing)
    assert here.apply(plan(here)).holds
    assert percents(here) == [40] * 4


def broken(here: World, after: int, times: int) -> None:
    lost = agent_error("NotFetched", "ReadError", "The connection was closed.")

    def stop() -> bool:
        if held(here) == after and times_left:
            times_left.pop()
            here.answers.faults.add(InjectedFault("StagedFile", "send", lost))
        return False

    times_left = [None] * times
    here.stop = stop


def test_what_breaks_off_in_the_middle_is_tried_again(here: World) -> None:
    source(here, piece=40)
    broken(here, after=40, times=3)
    assert here.apply(plan(here)).holds
    assert percents(here) == [40, 81, 100]
    assert len([event for event in here.events if "trying again" in event.text]) == 3


def test_what_stays_broken_ends_the_step_and_its_part_stays(here: World) -> None:
    found = here.state()
    source(here, piece=40)
    broken(here, after=40, times=99)
    with raises("StepFailed", match="The connection was closed"):
        here.apply(plan(here))
    assert held(here) == 40
    here.stop = lambda: False
    assert here.resume().holds
    assert here.rollback().holds
    assert here.state() == found


def test_what_is_not_there_fails_at_once(here: World) -> None:
    source(here, there=False)
    with raises("StepFailed", match="There is nothing"):
        here.apply(plan(here))
    assert percents(here) == []
