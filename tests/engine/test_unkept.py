"""A change that may cut SSH access is kept by whoever gets in again: the engine's own session and the lab's Linux."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.two_machines import OURS, TwoMachines, two_machines
from tests.engine.world import QUICK
from winhost.connect.wire_errors import RemoteError, SessionDropped, WireError
from winhost.core.steps import Step
from winhost.engine.host_session import HostSession
from winhost.engine.progress import ProgressEvent

KEY = {"path": "/etc/ssh/sshd_config.d/50-winhost-more.conf"}
NONE = {"text": None}
HARMLESS, CUTS = "MaxAuthTries 3\n", "Port 2299\n"


@pytest.fixture
def here(tmp_path: Path) -> TwoMachines:
    made = two_machines(tmp_path, shut=False)
    made.distro.systemd, made.distro.keys = True, [OURS]
    return made


def step(text: str) -> Step:
    return Step("1.1", "LinuxFile", KEY, "desired", NONE, {"text": text}, "sshd", "For the test.", ("network",))


def session(here: TwoMachines) -> tuple[HostSession, list[ProgressEvent]]:
    told: list[ProgressEvent] = []
    return HostSession(here.connector, QUICK, told.append), told


def text(here: TwoMachines) -> Any:
    return here.inside.linux.read_file(KEY["path"])["text"]


def test_a_change_that_cuts_nothing_is_kept_through_a_new_connection(here: TwoMachines) -> None:
    opened, told = session(here)
    assert opened.set(step(HARMLESS), frozenset({"network"})).after["text"] == HARMLESS
    assert len(here.targets) == 2
    assert "the host wants to be reached again" in told[0].text
    here.inside.undo_unkept_change()
    assert text(here) == HARMLESS


@pytest.mark.costly
def test_a_change_that_cuts_is_undone_and_said_to_be(here: TwoMachines) -> None:
    opened, _ = session(here)
    with pytest.raises(WireError):
        opened.set(step(CUTS), frozenset({"network"}))
    assert text(here) == CUTS
    here.inside.undo_unkept_change()
    assert text(here) is None
    with pytest.raises(RemoteError) as caught:
        opened.set(step(CUTS), frozenset({"network"}))
    assert caught.value.fault.code == "Winhost.Undone"


def test_a_connection_of_before_keeps_nothing(here: TwoMachines) -> None:
    old = here.open()
    old.get("LinuxFile", KEY)
    for _ in range(2):
        with pytest.raises(SessionDropped):
            old._linux.set("LinuxFile", KEY, {"text": HARMLESS}, NONE, {})  # type: ignore[attr-defined]
    new = here.open()
    assert (new.get("LinuxFile", KEY) or {})["text"] is None, "until it is kept, it may go back"
    assert new.set("LinuxFile", KEY, {"text": HARMLESS}, NONE, {}).after["text"] == HARMLESS


def test_a_restart_undoes_what_nobody_kept(here: TwoMachines) -> None:
    with pytest.raises(WireError):
        here.open().set("LinuxFile", KEY, {"text": HARMLESS}, NONE, {})
    here.distro.starts += 1
    here.linux.find_sshd()
    assert text(here) is None


def test_another_change_waits_until_the_first_is_kept_or_undone(here: TwoMachines) -> None:
    with pytest.raises(WireError):
        here.open().set("LinuxFile", KEY, {"text": HARMLESS}, NONE, {})
    other = {"path": "/etc/sudoers.d/90-winhost"}
    with pytest.raises(RemoteError) as caught:
        here.open().set("LinuxFile", other, {"text": "x"}, NONE, {})
    assert caught.value.fault.code == "Winhost.Awaiting"
