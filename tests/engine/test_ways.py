"""However a run ends before its end: it says what is so, and the ways that it names are ways."""

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.engine.world import EVERY_CONSENT, World, world
from tests.errors import raises
from winhost.connect.agent import Agent
from winhost.connect.wire_errors import Unreachable
from winhost.engine.failures import ConsentNeeded, PlanRefused
from winhost.engine.journal import SCHEMA, Journal, read_journal
from winhost.engine.store import Store
from winhost.lab.contract.agent_answers import InjectedFault
from winhost.lab.physics.windows_errors import CmdletError
from winhost.model.documents import plain
from winhost.model.errors import WinhostError

INSTALLED = "server2025-role-installed"
REFUSAL = CmdletError("Set-VM", "InvalidOperation", "OperationFailed", ("0x80131501",), "no")
WITHOUT_TURNING_OFF = tuple(risk for risk in EVERY_CONSENT if risk != "vm-turn-off")


@pytest.fixture
def installed(tmp_path: Path) -> World:
    return world(tmp_path, INSTALLED)


def assert_names_both(here: World, error: WinhostError) -> None:
    assert error.hint == f"Continue: winhost resume {here.run}\nRoll back: winhost rollback {here.run}"


def assert_names_back_alone(here: World, error: WinhostError) -> None:
    assert f"winhost rollback {here.run}" in (error.hint or "")
    assert "resume" not in (error.hint or "")


def quietly(when: str, entry: Any) -> None:
    """No hook any more."""


# ---- stopped by the user


def test_a_stop_before_the_first_step_names_no_run(installed: World) -> None:
    installed.stop = lambda: True
    with raises("Stopped") as stopped:
        installed.apply(installed.plan())
    assert stopped.value.run is None
    assert "Nothing was changed" in stopped.value.hint
    assert installed.store.runs() == ()


def test_a_stop_while_going_back_names_the_way_back(installed: World) -> None:
    installed.apply(installed.plan())
    done = len(installed.events)
    installed.stop = lambda: any(event.kind == "done" for event in installed.events[done:])
    with raises("Stopped") as stopped:
        installed.rollback()
    assert_names_back_alone(installed, stopped.value)


@pytest.mark.parametrize("back", [False, True])
def test_a_run_cut_short_in_a_step_names_its_ways(installed: World, back: bool) -> None:
    found = installed.state()
    if back:
        installed.apply(installed.plan())
    begun = len(installed.events)

    def interrupted(when: str, entry: Any) -> None:
        if (entry["event"], when) == ("end", "before") and len(installed.events) > begun + 4:
            raise KeyboardInterrupt

    plan = None if back else installed.plan()
    installed.around = interrupted
    with raises("CutShort") as cut:
        installed.apply(plan) if plan else installed.rollback()
    (assert_names_back_alone if back else assert_names_both)(installed, cut.value)
    installed.around = quietly
    assert installed.rollback().kept == ()
    assert installed.state() == found


def test_ctrl_c_before_the_first_step_is_no_end_of_a_run(installed: World) -> None:
    plan = installed.plan()

    def interrupt() -> bool:
        raise KeyboardInterrupt

    installed.stop = interrupt
    with pytest.raises(KeyboardInterrupt):
        installed.apply(plan)


# ---- refused by the host


def test_a_guest_that_does_not_stop_names_the_consent_and_claims_no_earlier_steps(tmp_path: Path) -> None:
    here = world(tmp_path, "guest-does-not-answer")
    with raises("StepFailed") as failed:
        here.apply(here.plan(), WITHOUT_TURNING_OFF)
    assert "--accept vm-turn-off" in failed.value.meaning
    assert "first step" in failed.value.meaning
    assert "before this one are done" not in failed.value.meaning
    assert_names_both(here, failed.value)


def test_a_consent_that_was_given_is_not_advised(installed: World) -> None:
    installed.answers.faults.add(InjectedFault("VmMmio", "set", REFUSAL))
    with raises("StepFailed") as failed:
        installed.apply(installed.plan())
    assert failed.value.meaning == "Steps before this one are done and journalled."


def test_a_failed_rollback_does_not_advise_to_resume(installed: World) -> None:
    installed.apply(installed.plan())
    installed.answers.faults.add(InjectedFault("VmMmio", "set", REFUSAL))
    with raises("StepFailed") as failed:
        installed.rollback()
    assert_names_back_alone(installed, failed.value)
    assert installed.rollback().outcome == "rolled back"


def test_a_consent_given_later_holds_for_going_back(tmp_path: Path) -> None:
    here = world(tmp_path, "guest-does-not-answer")
    found = here.state()
    here.apply(here.plan())
    with raises("StepFailed"):
        here.rollback(WITHOUT_TURNING_OFF)
    assert here.rollback(EVERY_CONSENT).kept == ()
    assert here.state() == found


@pytest.mark.parametrize("back", [False, True])
def test_a_host_that_says_yes_and_does_nothing_is_not_believed(
    installed: World, back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = installed.plan()
    if back:
        installed.apply(plan)
    with monkeypatch.context() as deaf:
        deaf.setitem(installed.machine.changes, "VmMmio", lambda asked: False)
        with raises("NotTaken") as refused:
            installed.rollback() if back else installed.apply(plan)
    named = set(re.findall(r"(\w+) should be ", refused.value.what))
    assert named == {"low", "high", "cache"}
    (assert_names_back_alone if back else assert_names_both)(installed, refused.value)
    assert installed.rollback().outcome == "rolled back"


def test_a_host_lost_while_going_back_names_the_way_back(installed: World) -> None:
    installed.apply(installed.plan())
    opened = installed.open

    def lost(when: str, entry: Any) -> None:
        if (entry["event"], when) == ("end", "after"):
            installed.open = unreachable  # type: ignore[method-assign]
            installed.machine.boot += 1

    def unreachable() -> Agent:
        raise Unreachable(installed.host, "no route to host")

    installed.around = lost
    with raises("OutOfReach") as out:
        installed.rollback()
    assert_names_back_alone(installed, out.value)
    installed.open, installed.around = opened, quietly  # type: ignore[method-assign]
    assert installed.rollback().kept == ()


# ---- refused here


def test_another_run_on_top_of_an_unfinished_one_is_refused(installed: World) -> None:
    plan, found = installed.plan(), installed.state()
    installed.answers.faults.add(InjectedFault("VmMmio", "set", REFUSAL))
    with raises("StepFailed"):
        installed.apply(plan)
    half = installed.state()
    with raises("Unfinished") as unfinished:
        installed.apply(plan)
    assert_names_both(installed, unfinished.value)
    assert installed.state() == half
    installed.rollback()
    assert installed.state() == found
    assert installed.apply(installed.plan()).holds


def test_an_unfinished_way_back_is_named_as_such(installed: World) -> None:
    plan = installed.plan()
    installed.apply(plan)
    installed.answers.faults.add(InjectedFault("VmMmio", "set", REFUSAL))
    with raises("StepFailed"):
        installed.rollback()
    with raises("Unfinished") as unfinished:
        installed.apply(plan)
    assert_names_back_alone(installed, unfinished.value)


def test_an_unfinished_run_of_another_machine_of_that_name_is_no_hindrance(installed: World) -> None:
    plan = installed.plan()
    replaced = {**plain(plan), "machine_id": "00000000-0000-0000-0000-000000000000"}
    journal = Journal(installed.store.path(f"{installed.host}.20200101-000000"))
    journal.write("run", schema=SCHEMA, run="r", winhost="0", plan=replaced, accepted=[])
    assert installed.apply(plan).holds


def test_what_cannot_be_gone_on_with_stands_in_nobodys_way(installed: World) -> None:
    folder = installed.store.path("x").parent
    (folder / f"{installed.host}.20200101-000000.jsonl").write_bytes(b"")
    (folder / f"{installed.host}.20200101-000001.jsonl").write_bytes(b"garbage\n")
    (folder / f"{installed.host}.20200101-000002.jsonl").mkdir()
    assert installed.apply(installed.plan()).holds


def test_two_stages_that_need_nothing_make_no_run(tmp_path: Path) -> None:
    here = world(tmp_path)
    plan = here.plan()
    assert here.apply(plan).holds
    runs = here.store.runs()
    again = here.apply(plan)
    assert (again.outcome, again.changed, again.holds) == ("nothing to do", 0, True)
    assert here.store.runs() == runs


def test_a_first_stage_that_needs_nothing_is_in_the_journal_of_the_second(tmp_path: Path) -> None:
    here = world(tmp_path)
    plan = here.plan()
    here.apply(plan)
    here.machine.set_vm(here.vm(), checkpoint_type="standard")
    found = here.state()
    assert here.apply(plan, []).changed == 1
    events = [entry["event"] for entry in read_journal(here.store.path(here.run))]
    assert events == ["run", "planned", "stage", "begin", "end", "stage", "dependents", "outcome"]
    assert here.resume().changed == 0
    here.rollback([])
    assert here.state() == found


def test_a_consent_that_only_the_second_stage_asks_for_names_no_run_that_was_not_begun(tmp_path: Path) -> None:
    here = world(tmp_path)
    plan = here.plan()
    here.apply(plan)
    here.machine.stop_vm(here.vm(), timeout=300)
    here.machine.set_vm(here.vm(), low=256 << 20)
    here.machine.start_vm(here.vm())
    with pytest.raises(ConsentNeeded) as needed:
        here.apply(plan, [])
    assert needed.value.run is None
    assert len(here.store.runs()) == 1


def test_a_refusal_after_a_stage_that_needed_nothing_names_no_run(tmp_path: Path) -> None:
    here = world(tmp_path)
    plan = here.plan()
    here.apply(plan)
    vm = here.machine.vms[here.vm()]
    vm.traits = {**vm.traits, "checkpoints": 1}
    with pytest.raises(PlanRefused) as refused:
        here.apply(plan)
    assert refused.value.run is None
    assert len(here.store.runs()) == 1


# ---- a journal that cannot be written


class FullDisk:
    """Takes nothing any more from some line on. Its hook is a journal's, its write the system's."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.full = False
        self._write = os.write

    def around(self, when: str, entry: Any) -> None:
        self.full = self.full or entry["n"] >= self.line

    def write(self, descriptor: int, line: bytes) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._write(descriptor, line)


@pytest.mark.parametrize("line", [2, 3, 6, 7])
def test_no_step_is_done_that_the_journal_cannot_say(
    installed: World, line: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, plan, found = FullDisk(line), installed.plan(), installed.state()
    installed.around = disk.around
    with monkeypatch.context() as patched:
        patched.setattr("os.write", disk.write)
        with raises("CannotWrite") as cannot:
            installed.apply(plan)
    told = installed.store.path(installed.run).read_bytes().count(b"\n") if installed.store.runs() else 0
    begun = sum(event.kind == "step" for event in installed.events)
    assert (told, begun) == (line - 1, (line - 1) // 2)
    assert "No space left" in cannot.value.what
    assert_names_both(installed, cannot.value)
    installed.around = quietly
    assert installed.rollback().kept == ()
    assert installed.state() == found


def test_a_disk_that_is_full_from_the_start_begins_no_run(installed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, plan, found = FullDisk(1), installed.plan(), installed.state()
    disk.full = True
    with monkeypatch.context() as patched:
        patched.setattr("os.write", disk.write)
        with raises("CannotWrite") as cannot:
            installed.apply(plan)
    assert cannot.value.run is None
    assert installed.store.runs() == ()
    assert installed.state() == found


def test_a_place_for_journals_that_cannot_be_made_is_named(installed: World, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    plan = installed.plan()
    installed.store = Store(tmp_path / "file")
    with raises("NoStore") as none:
        installed.apply(plan)
    assert "WINHOST_STATE" in none.value.hint
