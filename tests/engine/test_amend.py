"""What only a later stage could find wrong is chosen again in the middle of a run; what was used already is not."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.crash import Abandoned
from tests.engine.world import EVERY_CONSENT, World, world
from tests.engine.wsl2_world import Wsl2World, wsl2_world
from tests.errors import raises
from winhost.engine.amend import Amendment
from winhost.engine.failures import ConsentNeeded, PlanRefused, RunInterrupted
from winhost.engine.journal import read_journal
from winhost.engine.run import preview_amended, resume
from winhost.engine.run_state import RunState, replay
from winhost.lab.contract.agent_answers import InjectedFault
from winhost.lab.physics.windows_errors import CmdletError
from winhost.paths.playbook import PathRequest, parse_request

REFUSAL = CmdletError("Set-VM", "InvalidOperation", "OperationFailed", ("0x80131501",), "no")


def record(here: World) -> RunState:
    return replay(here.run, read_journal(here.store.existing_journal(here.run)))


def otherwise(here: World, **values: Any) -> PathRequest:
    return parse_request(record(here).plan.request).with_options(**values)


def amended(here: World, request: PathRequest, accepted: tuple[str, ...] = EVERY_CONSENT) -> Any:
    shown = preview_amended(here.run, request, here.context)
    return resume(here.run, accepted, here.context, Amendment(request, shown, "--vm NAME"))


@pytest.fixture
def halted(tmp_path: Path) -> World:
    """Its first stage is done, the host was restarted, and there is no such VM."""
    here = world(tmp_path)
    found = here.state()
    plan = here.plan("llm-typo")
    assert [(each.name, each.value, each.until) for each in plan.unchecked] == [("vm", "llm-typo", "HyperVRole")]
    with raises("Halted") as halted:
        here.apply(plan)
    assert halted.value.exit_code == 1
    assert f"winhost resume {here.run} --vm NAME" in halted.value.hint
    assert f"winhost rollback {here.run}" in halted.value.hint
    assert here.state() != found
    return here


def test_a_plan_that_could_see_all_of_it_left_nothing_unchecked(tmp_path: Path) -> None:
    assert world(tmp_path, "server2025-role-installed").plan().unchecked == ()


def test_a_vm_that_turned_out_not_to_be_there_is_chosen_anew(halted: World) -> None:
    accepted = record(halted).accepted
    assert amended(halted, otherwise(halted, vm="llm-01")).holds
    (entry,) = (e for e in read_journal(halted.store.path(halted.run)) if e["event"] == "amend")
    assert entry["changes"] == [{"name": "vm", "old": "llm-typo", "new": "llm-01"}]
    assert set(entry["accepted"]) == accepted
    assert halted.rollback().outcome == "rolled back"
    assert halted.machine.role == "available"


def test_going_on_without_choosing_is_refused_the_same_way(halted: World) -> None:
    with raises("Halted") as again:
        halted.resume()
    assert f"winhost resume {halted.run} --vm NAME" in again.value.hint
    assert record(halted).stopped is not None


def test_consents_for_the_one_vm_are_none_for_the_other(halted: World) -> None:
    request, made = otherwise(halted, vm="llm-01"), halted.state()
    assert set(EVERY_CONSENT) <= record(halted).accepted
    with pytest.raises(ConsentNeeded) as needed:
        amended(halted, request, ("restart",))
    assert needed.value.risks == ("vm-stop", "force-dismount")
    assert needed.value.exit_code == 1
    assert f"resume {halted.run} --vm NAME --accept vm-stop,force-dismount" in needed.value.hint
    assert halted.state() == made
    assert record(halted).plan.request.vm == "llm-typo"


def test_looking_at_what_it_would_do_changes_nothing(halted: World) -> None:
    made, lines = halted.state(), len(read_journal(halted.store.path(halted.run)))
    stage = preview_amended(halted.run, otherwise(halted, vm="files-01", allow_unverified=True), halted.context)
    assert {step.title for step in stage.steps} >= {"Power of files-01", "MMIO windows of files-01"}
    assert halted.state() == made
    assert len(read_journal(halted.store.path(halted.run))) == lines


def test_a_host_that_moved_since_it_was_shown_is_not_changed(halted: World) -> None:
    request = otherwise(halted, vm="llm-01")
    shown = preview_amended(halted.run, request, halted.context)
    halted.machine.stop_vm(halted.vm(), timeout=300)
    made = halted.state()
    with raises("Halted") as moved:
        resume(halted.run, EVERY_CONSENT, halted.context, Amendment(request, shown))
    assert moved.value.__cause__.code == "NotAsShown"
    assert halted.state() == made


def test_another_gpu_may_be_chosen_while_none_was_taken(halted: World) -> None:
    request = otherwise(halted, vm="llm-01", gpus=("NVIDIA L40S",))
    assert amended(halted, request).holds
    assert [vm.name for vm in halted.machine.vms.values() if len(halted.machine.devices_in_guest(vm.guid)) == 1] == [
        "llm-01"
    ]


def test_a_vm_that_has_been_changed_is_left_to_rollback(tmp_path: Path) -> None:
    here = world(tmp_path)
    here.answers.faults.add(InjectedFault("VmMmio", "set", REFUSAL))
    with raises("StepFailed"):
        here.apply(here.plan())
    made = here.state()
    with raises("AlreadyUsed") as used:
        amended(here, otherwise(here, vm="files-01", allow_unverified=True))
    assert "vm cannot be chosen again: Power of llm-01" in used.value.what
    assert here.state() == made
    assert amended(here, otherwise(here, high=256 << 30)).holds
    vm = here.machine.vms[here.vm()]
    assert (vm.high, vm.power) == (256 << 30, "running")


@pytest.mark.parametrize(("values", "why"), [({"vm": "llm-typo"}, "so already"), ({"vm": "llm-01"}, "cut off")])
def test_what_cannot_be_chosen_now_is_said(tmp_path: Path, values: dict[str, str], why: str) -> None:
    here = world(tmp_path)

    def around(moment: str, entry: Any) -> None:
        if (entry["event"], moment) == ("restarting" if why == "cut off" else "stopped", "after"):
            raise Abandoned

    here.around = around
    with pytest.raises(Abandoned):
        here.apply(here.plan("llm-typo"))
    here.around = lambda when, entry: None
    with raises("Halted", match=why) as halted:
        amended(here, otherwise(here, **values))
    assert halted.value.__cause__.code == "NothingAnew"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_controller_killed_at_the_choice_goes_on_and_back(halted: World, when: str) -> None:
    def around(moment: str, entry: Any) -> None:
        if (entry["event"], moment) == ("amend", when):
            raise Abandoned

    halted.around = around
    request = otherwise(halted, vm="llm-01")
    with pytest.raises(Abandoned):
        amended(halted, request)
    halted.around = lambda when, entry: None
    if when == "after":
        assert halted.resume().holds
    else:
        with raises("Halted"):
            halted.resume()
    assert halted.rollback().outcome == "rolled back"
    assert halted.machine.role == "available"


def test_a_refusal_of_a_later_stage_offers_the_choice(tmp_path: Path) -> None:
    here = world(tmp_path)
    plan = here.plan("files-01")
    vm = here.machine.vms[here.vm("files-01")]
    vm.traits = {**vm.traits, "checkpoints": 2}
    with pytest.raises(PlanRefused) as refused:
        here.apply(plan)
    assert f"Choose otherwise: winhost resume {here.run} --vm NAME" in refused.value.hint
    assert amended(here, otherwise(here, vm="llm-01")).holds


# ---- the same on the other path: settings of its playbook


def with_settings(here: Wsl2World, **settings: Any) -> PathRequest:
    request = parse_request(record(here).plan.request)
    return request.with_playbook(request.playbook.with_settings({**request.playbook.settings, **settings}))


@pytest.fixture
def stuck(tmp_path: Path) -> Wsl2World:
    """Its first stage is done; in the second nothing was."""
    here = wsl2_world(tmp_path, unverified=True)
    plan = here.plan()
    assert {each.name for each in plan.unchecked} == {"containers.ubuntu", "containers.docker", "containers.toolkit"}
    here.answers.faults.add(InjectedFault("WslConfig", "set", REFUSAL))
    with pytest.raises(RunInterrupted):
        here.apply(plan, ("restart", "network", "vm-stop", "headless", "data"))
    return here


def test_a_setting_that_was_not_used_yet_is_chosen_anew(stuck: Wsl2World) -> None:
    accepted = ("restart", "network", "vm-stop", "headless", "data")
    request = with_settings(stuck, memory="8 GiB")
    shown = preview_amended(stuck.run, request, stuck.context)
    assert resume(stuck.run, accepted, stuck.context, Amendment(request, shown)).holds
    (entry,) = (e for e in read_journal(stuck.store.path(stuck.run)) if e["event"] == "amend")
    assert entry["changes"] == [{"name": "memory", "old": None, "new": "8 GiB"}]
    assert "memory=8192MB" in str(stuck.state()["WslConfig"])


def test_a_setting_that_a_finished_stage_used_is_not(stuck: Wsl2World) -> None:
    made = stuck.state()
    for name in ("account", "distro"):
        with raises("AlreadyUsed", match=f"{name} cannot be chosen again"):
            preview_amended(stuck.run, with_settings(stuck, **{name: "other"}), stuck.context)
    assert stuck.state() == made


def test_a_version_that_apt_does_not_have_is_chosen_anew(tmp_path: Path) -> None:
    accepted = ("restart", "network", "vm-stop", "headless", "data")
    here = wsl2_world(tmp_path, unverified=True)
    plan = here.plan()
    here.stop = lambda: any(event.text.startswith("stage 3:") for event in here.events)
    with pytest.raises(RunInterrupted):
        here.apply(plan, accepted)
    here.stop = lambda: False
    here.inside.faults.add(InjectedFault("DebianPackage", "set", REFUSAL))
    with raises("StepFailed") as failed:
        here.resume(accepted)
    assert f"Choose otherwise: winhost resume {here.run} --set NAME=VALUE" in failed.value.hint
    containers = record(here).plan.request.playbook["settings"]["containers"]
    request = with_settings(here, containers={**containers, "toolkit": "1.20.1-1"})
    stage = preview_amended(here.run, request, here.context)
    assert [step.desired["version"] for step in stage.steps if step.resource == "DebianPackage"][-1] == "1.20.1-1"
    assert resume(here.run, accepted, here.context, Amendment(request, stage)).outcome in ("applied", "differs")


# ---- a run that changed nothing


def test_a_run_that_lost_the_race_is_in_nobodys_way(tmp_path: Path) -> None:
    here = world(tmp_path, "server2025-role-installed")
    plan, vm = here.plan(), here.vm()

    def somebody_is_quicker(when: str, entry: Any) -> None:
        if (entry["event"], when) == ("begin", "after"):
            here.machine.stop_vm(vm, timeout=300)

    here.around = somebody_is_quicker
    with pytest.raises(Exception, match="is not as planned"):
        here.apply(plan)
    here.around = lambda when, entry: None
    assert record(here).outcome == "nothing changed"
    assert record(here).stopped is not None
    assert here.apply(here.plan()).holds


def test_a_run_whose_first_step_was_refused_waits_behind_the_next(tmp_path: Path) -> None:
    here = world(tmp_path, "guest-does-not-answer")
    plan = here.plan()
    with raises("StepFailed"):
        here.apply(plan, ("vm-stop", "force-dismount"))
    first = here.run
    assert record(here).outcome == "nothing changed"
    here.answers.faults.add(InjectedFault("VmMmio", "set", REFUSAL))
    with raises("StepFailed"):
        here.apply(plan)
    with raises("Unfinished"):
        resume(first, EVERY_CONSENT, here.context)
