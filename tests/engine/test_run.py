"""What apply, resume and rollback promise beyond the straight way."""

import dataclasses
import os
import threading
from pathlib import Path

import pytest

from tests.engine.world import EVERY_CONSENT, World, world
from tests.errors import raises
from tests.processes import PATIENCE_S
from winhost.connect.agent import Agent
from winhost.connect.wire_errors import Drifted, Unreachable
from winhost.engine.failures import ConsentNeeded, PlanRefused
from winhost.engine.journal import read_journal
from winhost.engine.run_state import replay
from winhost.lab.contract.agent_answers import InjectedFault
from winhost.lab.physics.virtual_machine import VirtualMachine
from winhost.lab.physics.windows_errors import CmdletError
from winhost.model.plan import Plan

INSTALLED = "server2025-role-installed"
GPU_24GB = "PCIROOT(49)#PCI(0100)#PCI(0000)"


@pytest.fixture
def installed(tmp_path: Path) -> World:
    """The role is there: one stage, no restart."""
    return world(tmp_path, INSTALLED)


def titles(plan: Plan) -> list[str]:
    return [step.title for step in plan.steps]


def test_applying_twice_changes_nothing_the_second_time(installed: World) -> None:
    plan = installed.plan()
    assert installed.apply(plan).changed == len(list(plan.steps))
    made, runs = installed.state(), installed.store.runs()
    again = installed.apply(plan)
    assert (again.changed, again.outcome, again.holds) == (0, "nothing to do", True)
    assert installed.state() == made
    assert installed.store.runs() == runs


def test_a_plan_of_what_is_already_so_has_no_steps(installed: World) -> None:
    installed.apply(installed.plan())
    assert titles(installed.plan()) == []


def test_the_vm_is_stopped_once_and_runs_again_because_it_ran(installed: World) -> None:
    plan = installed.plan()
    power = [(step.role, step.desired["state"]) for step in plan.steps if step.resource == "VmPower"]
    assert power == [("need", "off"), ("restore", "running")]
    installed.apply(plan)
    assert installed.machine.vms[installed.vm()].power == "running"


def test_a_vm_that_was_off_stays_off(installed: World) -> None:
    installed.machine.stop_vm(installed.vm(), timeout=300)
    plan = installed.plan()
    assert [step for step in plan.steps if step.resource == "VmPower"] == []
    assert plan.risks == ("force-dismount",)
    installed.apply(plan)
    assert installed.machine.vms[installed.vm()].power == "off"


def test_no_other_vm_is_touched(installed: World) -> None:
    before = installed.state()
    installed.apply(installed.plan())
    other = installed.vm("files-01")
    after = installed.state()
    for resource in (resource for resource in before if resource.startswith("Vm")):
        assert [r for r in before[resource] if other in str(r)] == [r for r in after[resource] if other in str(r)], (
            resource
        )


def test_nothing_is_begun_without_each_consent(installed: World) -> None:
    plan = installed.plan()
    found = installed.state()
    with pytest.raises(ConsentNeeded) as needed:
        installed.apply(plan, ["vm-stop"])
    assert needed.value.risks == ("force-dismount",)
    assert "--accept force-dismount" in needed.value.hint
    assert installed.state() == found
    assert installed.store.runs() == ()


def test_force_is_used_only_where_it_was_planned_and_consented(installed: World) -> None:
    plan = installed.plan()
    forced = {step.key["location"] for step in plan.steps if "force-dismount" in step.risks}
    assert all(location.startswith(GPU_24GB.rpartition("#")[0]) for location in forced)
    assert forced


def test_a_consent_edited_out_of_the_plan_is_asked_for_all_the_same(installed: World) -> None:
    plan = installed.plan()
    (stage,) = plan.stages
    steps = tuple(dataclasses.replace(step, risks=()) for step in stage.steps)
    edited = dataclasses.replace(plan, stages=(dataclasses.replace(stage, steps=steps),))
    with pytest.raises(ConsentNeeded) as needed:
        installed.apply(edited, [])
    assert needed.value.risks == ("vm-stop", "force-dismount")


def test_a_later_stage_asks_for_its_consents_and_goes_on_with_them(tmp_path: Path) -> None:
    here = world(tmp_path)
    with pytest.raises(ConsentNeeded) as needed:
        here.apply(here.plan(), ["restart"])
    assert needed.value.run == here.run
    assert "vm-stop" in needed.value.risks
    assert here.resume(EVERY_CONSENT).holds


def test_drift_is_refused_with_each_difference(installed: World) -> None:
    plan = installed.plan()
    installed.machine.stop_vm(installed.vm(), timeout=300)
    installed.machine.set_vm(installed.vm(), checkpoint_type="standard", low=256 << 20)
    found = installed.state()
    with pytest.raises(Drifted) as drift:
        installed.apply(plan)
    assert set(drift.value.differences) == {
        "Power of llm-01: state",
        "Checkpoints of llm-01: kind",
        "MMIO windows of llm-01: low",
    }
    assert drift.value.exit_code == 4
    assert installed.state() == found


def test_a_new_refusal_since_the_plan_stops_before_the_first_step(installed: World) -> None:
    plan, found = installed.plan(), installed.state()
    vm = installed.machine.vms[installed.vm()]
    vm.traits = {**vm.traits, "checkpoints": 1}
    with pytest.raises(PlanRefused):
        installed.apply(plan)
    vm.traits = {**vm.traits, "checkpoints": 0}
    assert installed.state() == found
    assert installed.store.runs() == ()


def test_a_host_lost_in_the_middle_leaves_both_ways_open(installed: World) -> None:
    plan, opened = installed.plan(), installed.open

    def lost(when: str, entry: object) -> None:
        if isinstance(entry, dict) and (entry["n"], when) == (6, "after"):
            installed.open = unreachable  # type: ignore[method-assign]
            installed.machine.boot += 1

    def unreachable() -> Agent:
        raise Unreachable(installed.host, "no route to host")

    installed.around = lost
    with raises("OutOfReach") as out:
        installed.apply(plan)
    assert f"winhost resume {installed.run}" in out.value.hint
    assert out.value.exit_code == 5
    installed.open = opened  # type: ignore[method-assign]
    installed.around = lambda when, entry: None
    assert installed.resume().holds


def test_a_plan_for_another_machine_is_refused(installed: World) -> None:
    foreign = dataclasses.replace(installed.plan(), machine_id="00000000-0000-0000-0000-000000000000")
    with raises("WrongHost"):
        installed.apply(foreign)
    assert installed.store.runs() == ()


def test_ctrl_c_stops_between_steps_and_resume_goes_on(installed: World) -> None:
    plan = installed.plan()
    installed.stop = lambda: sum(event.kind == "done" for event in installed.events) >= 3
    with raises("Stopped") as stopped:
        installed.apply(plan)
    assert "stopped after 3 changes" in stopped.value.what
    installed.stop = lambda: False
    assert installed.resume().holds


def test_a_guest_that_does_not_shut_down_is_turned_off_only_with_consent(tmp_path: Path) -> None:
    here = world(tmp_path, "guest-does-not-answer")
    plan = here.plan()
    accepted = [risk for risk in EVERY_CONSENT if risk != "vm-turn-off"]
    with raises("StepFailed") as failed:
        here.apply(plan, accepted)
    assert failed.value.__cause__.fault.code == "Winhost.GuestDidNotStop"
    assert here.machine.vms[here.vm()].power == "running"
    assert here.resume(EVERY_CONSENT).holds


def test_a_failing_step_leaves_what_was_done_and_the_way_back(installed: World) -> None:
    plan, found = installed.plan(), installed.state()
    refusal = CmdletError("Add-VMAssignableDevice", "InvalidOperation", "OperationFailed", ("0x80131501",), "no")
    installed.answers.faults.add(InjectedFault("AssignableDevice", "set", refusal, after_change=True))
    with raises("StepFailed") as failed:
        installed.apply(plan)
    assert "winhost rollback" in failed.value.hint
    assert installed.rollback().outcome == "rolled back"
    assert installed.state() == found


@pytest.mark.parametrize(
    ("hresults", "message", "likely"),
    [
        (("0x80131501", "0x80070490"), "要素が見つかりません。", "The VM still has a device assigned"),
        (("0x80131501",), "Ошибка (0x80070569)", 'A group policy gives "Log on as a service"'),
        (("0x80131501", "0xC035001E"), "no", None),  # the facts of this server contradict all of its causes
        (("0x80131501",), "no", None),
    ],
)
def test_a_failing_step_says_what_is_likely_behind_it(
    installed: World, hresults: tuple[str, ...], message: str, likely: str | None
) -> None:
    refusal = CmdletError("Add-VMAssignableDevice", "InvalidOperation", "OperationFailed", hresults, message)
    installed.answers.faults.add(InjectedFault("AssignableDevice", "set", refusal, after_change=True))
    with raises("StepFailed") as failed:
        installed.apply(installed.plan())
    said = failed.value.meaning or ""
    assert ("Likely cause: " in said) is (likely is not None)
    if likely:
        assert f"\nLikely cause: {likely}" in said
        assert "winhost explain " in said


def test_rollback_undoes_the_rest_of_what_was_undone_by_hand(installed: World) -> None:
    found = installed.state()
    installed.apply(installed.plan())
    vm = installed.vm()
    installed.machine.stop_vm(vm, timeout=300)
    installed.machine.remove_vm_assignable_device(vm, GPU_24GB)
    installed.machine.mount_vm_host_assignable_device(GPU_24GB)
    installed.machine.start_vm(vm)
    assert installed.rollback().outcome == "rolled back"
    assert installed.state() == found


def test_rollback_keeps_what_another_vm_uses_now(installed: World) -> None:
    installed.apply(installed.plan())
    mine, other = installed.vm(), installed.vm("files-01")
    machine = installed.machine
    machine.stop_vm(mine, timeout=300)
    machine.remove_vm_assignable_device(mine, GPU_24GB)
    machine.stop_vm(other, timeout=300)
    machine.set_vm(other, stop_action="turn-off")
    machine.add_vm_assignable_device(other, GPU_24GB)
    outcome = installed.rollback()
    assert machine.assignment(GPU_24GB) == f"assigned:{other}"
    assert [sentence for sentence in outcome.kept if "VM files-01 has it now" in sentence]


def test_rollback_keeps_what_somebody_changed_since(installed: World) -> None:
    installed.apply(installed.plan())
    installed.machine.stop_vm(installed.vm(), timeout=300)
    installed.machine.set_vm(installed.vm(), high=256 << 30)
    outcome = installed.rollback()
    assert any("MMIO windows of llm-01: kept: high changed since" in sentence for sentence in outcome.kept)
    assert installed.machine.vms[installed.vm()].high == 256 << 30


def test_the_role_stays_when_a_vm_was_made_on_it_since(tmp_path: Path) -> None:
    here = world(tmp_path)
    here.apply(here.plan())
    known = here.machine.vms[here.vm()]
    guid = "11111111-2222-4333-8444-555555555555"
    made = VirtualMachine(guid, {**known.traits, "name": "new"})
    here.machine.vms[guid] = made
    outcome = here.rollback()
    assert here.machine.role == "installed"
    assert any("made since need it" in sentence for sentence in outcome.kept)


def test_rolling_back_twice_changes_nothing_the_second_time(installed: World) -> None:
    installed.apply(installed.plan())
    installed.rollback()
    found = installed.state()
    assert installed.rollback().changed == 0
    assert installed.state() == found


def test_rollback_asks_for_its_own_consents_and_refusing_leaves_the_run_as_it_was(installed: World) -> None:
    installed.apply(installed.plan())
    with pytest.raises(ConsentNeeded) as needed:
        installed.rollback([])
    assert needed.value.risks == ("vm-stop",)
    record = replay(installed.run, read_journal(installed.store.existing_journal(installed.run)))
    assert record.going_back is False


def test_a_run_that_goes_back_cannot_go_on(installed: World) -> None:
    installed.apply(installed.plan())
    installed.rollback()
    with raises("OneWay"):
        installed.resume()


def test_a_new_refusal_after_the_restart_stops_with_the_way_back(tmp_path: Path) -> None:
    here = world(tmp_path)
    found = here.state()
    plan = here.plan()
    vm = here.machine.vms[here.vm()]

    def checkpoints(count: int) -> None:
        vm.traits = {**vm.traits, "checkpoints": count}

    def checkpoint_appears(when: str, entry: object) -> None:
        if isinstance(entry, dict) and (entry["event"], when) == ("restarted", "after"):
            checkpoints(2)

    here.around = checkpoint_appears
    with pytest.raises(PlanRefused) as refused:
        here.apply(plan)
    assert refused.value.grounds.codes == ("dda.checkpoints",)
    here.around = lambda when, entry: None
    checkpoints(0)
    here.rollback()
    assert here.state() == found


def test_one_run_at_a_time_names_the_holder(installed: World) -> None:
    with installed.store.lock(installed.host, "apply"), raises("Busy") as busy:
        installed.apply(installed.plan())
    assert f"process {os.getpid()}, apply" in busy.value.what


def test_an_unknown_run_is_named(installed: World) -> None:
    with raises("UnknownRun"):
        installed.store.existing_journal("gpu-01.20000101-000000")


def test_a_call_that_outlived_its_controller_is_waited_for(installed: World) -> None:
    """The set holds the host's mutex; who reads to go on must see its end, not its middle."""
    plan = installed.plan()
    installed.machine.mutex.acquire(timeout=PATIENCE_S)
    held = threading.Event()

    def other_controller() -> None:
        held.set()
        installed.apply(plan)

    thread = threading.Thread(target=other_controller, daemon=True)
    thread.start()
    held.wait(PATIENCE_S)
    thread.join(0.2)
    assert thread.is_alive()
    installed.machine.mutex.release()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert installed.plan().risks == ()


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_a_journal_is_its_owners_alone(installed: World) -> None:
    installed.apply(installed.plan())
    path = installed.store.path(installed.run)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
