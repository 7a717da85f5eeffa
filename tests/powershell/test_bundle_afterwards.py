"""A bundle in the middle of its work, afterwards, and when others have changed something since."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.world import EVERY_CONSENT, World, world
from tests.powershell.bundle_cases import INSTALLED, Case, as_compared, case, left_open, person
from tests.powershell.bundles import (
    ByHand,
    Person,
    broken,
    filmed,
    twin,
    unpack,
)
from tests.powershell.twins import machine
from winhost.core.rollback import LaterRuns
from winhost.engine.journal import read_journal
from winhost.engine.rollback import preview, rollback
from winhost.engine.run_context import RunContext
from winhost.engine.run_state import replay
from winhost.engine.store import Store
from winhost.lab.contract.agent_answers import MARKS_FILE
from winhost.lab.physics.virtual_machine import VirtualMachine
from winhost.lab.physics.windows_errors import CmdletError

__all__ = ["case", "person"]
Plans = list[tuple[ByHand, Path, str, RunContext]]

GPU_24GB = "PCIROOT(49)#PCI(0100)#PCI(0000)"
GPU_16GB = "PCIROOT(16)#PCI(0100)#PCI(0000)"


def test_a_guest_that_does_not_stop_is_turned_off_only_with_its_own_consent(case: Callable[..., Case]) -> None:
    it = case("guest-does-not-answer")
    done = it.here.apply(it.made, "-GuestDeadline", "5", accept=["vm-stop", "force-dismount", "restart"])
    assert (done.code, done.refused) == (1, "StepFailed")
    assert "Winhost.GuestDidNotStop" in done.said["error"]["what"]
    assert it.here.apply(it.made, "-GuestDeadline", "5").said["outcome"] == "applied"
    it.other.apply(it.plan)
    assert it.here.state() == it.other.state()


def test_what_somebody_changed_since_is_kept_and_said(case: Callable[..., Case]) -> None:
    it = case()
    it.here.apply(it.made)
    it.other.apply(it.plan)
    for host in (it.here.machine, it.other.machine):
        vm: VirtualMachine = host.vms[it.other.vm()]
        vm.stop_action = "shut-down"
    done, outcome = it.here.rollback(it.made).said, it.other.rollback()
    assert done["kept"] == list(outcome.kept) != []
    assert it.here.state() == it.other.state()


@pytest.mark.parametrize("eighth", [0, *(pytest.param(each, marks=pytest.mark.costly) for each in range(1, 8))])
def test_what_somebody_changed_stays_and_the_rest_goes_back(
    case: Callable[..., Case], tmp_path: Path, eighth: int
) -> None:
    it = case()
    vm = it.other.vm()
    made = unpack(it.plan, tmp_path / "watched", watched=True)
    found = it.here.machine.vms[vm]
    low, cache = found.low, found.cache
    it.here.apply(made)
    it.other.apply(it.plan)
    for host in (it.here.machine, it.other.machine):
        assert (host.vms[vm].low, host.vms[vm].cache) != (low, cache)
        host.stop_vm(vm, timeout=300)
        host.set_vm(vm, high=256 << 30)
        host.start_vm(vm)
    undo, _ = preview(
        replay(it.other.run, read_journal(it.other.store.path(it.other.run))), it.other.facts(), LaterRuns()
    )
    assert as_compared(it.here.rollback(made, "-WhatIf").said["steps"]) == as_compared(undo)
    with filmed(it.here, tmp_path / "back") as back:
        done = it.here.rollback(made).said
    outcome = it.other.rollback()
    assert (done["outcome"], done["kept"]) == (outcome.outcome, list(outcome.kept))
    assert done["kept"] == ["MMIO windows of llm-01: kept: high changed since by somebody else"]
    assert it.here.state() == it.other.state()
    for moment in back[eighth::8]:  # what was not ours does not become ours by being read on the way
        again = moment.here.rollback(made).said
        assert (again["outcome"], again["kept"]) == (outcome.outcome, done["kept"]), moment.name
        assert moment.here.state() == it.other.state(), moment.name


@pytest.mark.parametrize(
    ("role", "cmdlet", "says"),
    [
        ("available", "", "the Hyper-V role has to be there first"),
        ("installed", "Get-VMAssignableDevice", "devices that can be assigned: no [OperationFailed]"),
    ],
    ids=["the role is away", "devices"],
)
def test_what_cannot_be_read_is_neither_kept_nor_rolled_back(
    case: Callable[..., Case], role: str, cmdlet: str, says: str
) -> None:
    it = case()
    found = it.here.state()
    it.here.apply(it.made)
    it.other.apply(it.plan)
    for host in (it.here.machine, it.other.machine):
        host.role = host.tools = role
    if cmdlet:
        it.other.machine.refusals["AssignableDevice"] = lambda: CmdletError(cmdlet, "ReadError", "", (), "no")
    with broken(cmdlet):
        for _ in range(2):
            done, outcome = it.here.rollback(it.made), it.other.rollback()
            left_open(done, says)
            missing = [(lacks["title"], lacks["resource"], lacks["key"]) for lacks in done.said["missing"]]
            assert sorted(missing, key=str) == sorted(((m.title, m.resource, m.key) for m in outcome.missing), key=str)
            assert it.here.state() == it.other.state()
    it.here.machine.role = it.here.machine.tools = "installed"
    done = it.here.rollback(it.made)
    assert (done.code, done.said["outcome"], done.said["missing"]) == (0, "rolled back", [])
    assert it.here.state() == found


def test_a_vm_that_has_a_gpu_now_is_called_by_its_name(case: Callable[..., Case]) -> None:
    it = case()
    it.here.apply(it.made)
    it.other.apply(it.plan)
    machine = it.other.machine
    (vm,) = (vm for vm in machine.vms.values() if vm.guid != it.other.vm())
    for each in machine.vms:
        machine.stop_vm(each, timeout=300)
    gpu = {"location": GPU_16GB, "device": "VEN_10DE&DEV_2D04&SUBSYS_53521462"}
    it.other.open().set(
        "AssignableDevice", gpu, {"assignment": f"assigned:{vm.guid}"}, {}, {"accept": ["force-dismount"]}
    )
    it.here.machine = twin(machine)
    done, outcome = it.here.rollback(it.made), it.other.rollback()
    assert done.said["kept"] == list(outcome.kept)
    assert [sentence for sentence in outcome.kept if sentence.endswith(f": kept: VM {vm.name} has it now")]


@pytest.fixture
def two_plans(person: Person, tmp_path: Path) -> tuple[World, Plans]:
    """Two plans for one VM, the second one of more GPUs, applied by people who do not know of each other."""
    other = world(tmp_path / "store", INSTALLED)
    host = twin(other.machine)
    made = []
    for name, gpus in (("one", (GPU_24GB,)), ("two", (GPU_24GB, GPU_16GB))):
        plan = other.plan(gpus=gpus)
        here, bundle = ByHand(person, host, tmp_path / name), unpack(plan, tmp_path / f"bundle-{name}")
        other.store = Store(tmp_path / f"store-{name}")  # with both journals here it would name the run
        assert here.apply(bundle).said["outcome"] == other.apply(plan).outcome == "applied"
        made.append((here, bundle, other.run, other.context))
    return other, made


@pytest.mark.parametrize("order", [[1, 0], [0, 1, 0]], ids=["in reverse order", "in their own order"])
def test_two_plans_on_one_vm_go_back(two_plans: tuple[World, Plans], order: list[int]) -> None:
    other, made = two_plans
    for turn, number in enumerate(order):
        here, bundle, run, context = made[number]
        done, outcome = here.rollback(bundle), rollback(run, EVERY_CONSENT, context)
        assert (done.said["outcome"], len(done.said["kept"])) == (outcome.outcome, len(outcome.kept))
        for by_hand, by_winhost in zip(done.said["kept"], outcome.kept, strict=True):  # which names the run as well
            assert by_hand.partition("; undo")[0] == by_winhost.partition(" with run")[0]
        partly = order[turn:] == [0, 1, 0]
        assert (outcome.outcome, done.code) == (("partly rolled back", 1) if partly else ("rolled back", 0))
        assert ("Undo what came later" in " ".join(done.said["next"])) == bool(outcome.kept) == partly
        assert here.state() == other.state()
    assert other.state() == machine(INSTALLED).comparable_state()
    assert [here.rollback(bundle).refused for here, bundle, _, _ in made] == ["UnknownRun"] * 2


@pytest.mark.parametrize("by_hand_first", [True, False], ids=["the bundle first", "the bundle later"])
def test_a_bundle_and_a_run_wait_for_each_other(person: Person, tmp_path: Path, *, by_hand_first: bool) -> None:
    """Both set the same property of a VM, on which nothing depends."""
    other = world(tmp_path / "store", INSTALLED)
    here, found = ByHand(person, other.machine, tmp_path / "journals"), other.state()
    for by_hand in (by_hand_first, not by_hand_first):
        high = None if by_hand is by_hand_first else 256 << 30
        plan = other.plan(gpus=(GPU_24GB,), high=high)
        if by_hand:
            made = unpack(plan, tmp_path / "bundle")
            assert here.apply(made).said["outcome"] == "applied"
        else:
            assert other.apply(plan).holds
    run = other.run
    if by_hand_first:
        done = here.rollback(made)
        assert (done.code, done.said["outcome"]) == (1, "partly rolled back")
        assert [f"changed since by run {run} (" in kept for kept in done.said["kept"]] == [True]
        assert any(f"winhost rollback {run}" in next_ for next_ in done.said["next"])
        assert other.rollback().outcome == "rolled back"
        assert here.rollback(made).said["outcome"] == "rolled back"
    else:
        outcome = other.rollback()
        assert (outcome.outcome, [each.by for each in outcome.waiting[0].others]) == ("partly rolled back", ["bundle"])
        assert "Rollback.ps1" in (outcome.next or "")
        assert here.rollback(made).said["outcome"] == "rolled back"
        assert other.rollback().outcome == "rolled back"
    assert other.state() == found
    assert other.machine.files.read(MARKS_FILE) is None


def test_the_settings_stay_for_a_gpu_that_was_given_by_hand(case: Callable[..., Case]) -> None:
    it = case()
    plan = it.other.plan(gpus=(GPU_24GB,))
    made = unpack(plan, it.made.parent / "one-gpu")
    it.here.apply(made)
    it.other.apply(plan)
    assert it.here.state() == it.other.state()
    vm = it.other.vm()
    gpu = {"location": GPU_16GB, "device": "VEN_10DE&DEV_2D04&SUBSYS_53521462"}
    it.other.machine.stop_vm(vm, timeout=300)
    it.other.open().set("AssignableDevice", gpu, {"assignment": f"assigned:{vm}"}, {}, {"accept": ["force-dismount"]})
    it.other.machine.start_vm(vm)
    it.here.machine = twin(it.other.machine)
    done, outcome = it.here.rollback(made), it.other.rollback()
    assert done.said["kept"] == list(outcome.kept)
    assert [sentence for sentence in outcome.kept if f"for {GPU_16GB}, which came later" in sentence]
    assert it.here.state() == it.other.state()


def test_a_second_apply_changes_nothing_and_verify_agrees(case: Callable[..., Case]) -> None:
    it = case()
    assert it.here.verify(it.made).code == 4
    it.here.apply(it.made)
    journals = sorted(it.here.journals.iterdir())
    again = it.here.apply(it.made)
    assert (again.code, again.said["outcome"], again.said["changed"]) == (0, "nothing to do", 0)
    assert sorted(it.here.journals.iterdir()) == journals
    verified = it.here.verify(it.made)
    assert (verified.code, verified.said["holds"]) == (0, True)
    assert all(check["holds"] for check in verified.said["checks"])


def test_an_earlier_run_of_the_same_plan_is_named_when_the_later_one_is_undone(case: Callable[..., Case]) -> None:
    it = case()
    found = it.here.state()
    it.here.apply(it.made)
    it.here.machine.vms[it.other.vm()].cache = False
    assert it.here.apply(it.made).said["changed"] == 3
    assert "once more" in " ".join(it.here.rollback(it.made).said["next"])
    assert it.here.rollback(it.made).said["next"] == []
    assert it.here.state() == found
