"""Going back gives back what is ours, and nothing that others have or need by now."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.engine.world import EVERY_CONSENT, World, world
from tests.errors import raises
from winhost.core.answers import Json
from winhost.core.undo import Keep, Undo, find_undo
from winhost.engine.failures import RunInterrupted
from winhost.engine.journal import Journal, read_journal
from winhost.engine.rollback import rollback
from winhost.engine.run_context import Outcome
from winhost.engine.run_state import replay
from winhost.lab.contract.agent_answers import InjectedFault
from winhost.lab.physics.windows_errors import CmdletError
from winhost.resources.registry import RULES

INSTALLED = "server2025-role-installed"
GPU_24GB = "PCIROOT(49)#PCI(0100)#PCI(0000)"
GPU_16GB = {"location": "PCIROOT(16)#PCI(0100)#PCI(0000)", "device": "VEN_10DE&DEV_2D04&SUBSYS_53521462"}


@pytest.fixture
def installed(tmp_path: Path) -> World:
    return world(tmp_path, INSTALLED)


def back(here: World, run: str) -> Outcome:
    return rollback(run, EVERY_CONSENT, here.context)


@pytest.mark.parametrize(
    ("now", "undo"),
    [
        ({"low": 2, "high": 2}, {"low": 1, "high": 1}),
        ({"low": 1, "high": 1}, {}),
        ({"low": 1, "high": 2}, {"high": 1}),
        ({"low": 2, "high": 7}, Keep("high changed since by somebody else", {"low": 1})),
        ({"low": 1, "high": 7}, Keep("high changed since by somebody else")),
        ({"low": 9, "high": 7}, Keep("low, high changed since by somebody else")),
    ],
    ids=["ours", "undone by hand", "partly undone", "one is theirs", "one is theirs, one undone", "theirs"],
)
def test_each_property_is_undone_for_itself(now: Mapping[str, Json], undo: Undo) -> None:
    assert find_undo(RULES["VmMmio"], {"low": 1, "high": 1}, {"low": 2, "high": 2}, now) == undo


def test_what_somebody_changed_stays_and_the_rest_goes_back(installed: World) -> None:
    vm = installed.machine.vms[installed.vm()]
    low, cache = vm.low, vm.cache
    installed.apply(installed.plan())
    assert (vm.low, vm.cache) != (low, cache)
    installed.machine.stop_vm(vm.guid, timeout=300)
    installed.machine.set_vm(vm.guid, high=256 << 30)
    installed.machine.start_vm(vm.guid)
    for _ in range(2):
        outcome = installed.rollback()
        assert outcome.kept == ("MMIO windows of llm-01: kept: high changed since by somebody else",)
        assert outcome.outcome == "rolled back"
        assert (vm.low, vm.high, vm.cache, vm.power) == (low, 256 << 30, cache, "running")


def test_going_back_needs_no_playbook_that_this_winhost_can_read(installed: World) -> None:
    found = installed.state()
    installed.apply(installed.plan())
    path = installed.store.path(installed.run)
    entries = read_journal(path)
    path.unlink()
    journal = Journal(path)
    for entry in entries:
        fields = {name: value for name, value in entry.items() if name not in ("n", "at", "event", "previous", "hash")}
        if entry["event"] == "run":
            fields["plan"]["request"]["playbook"]["settings"] = {"of-a-later-winhost": 1}
        journal.write(entry["event"], **fields)
    with pytest.raises(RunInterrupted, match="of-a-later-winhost"):
        installed.resume()
    assert installed.rollback().outcome == "rolled back"
    assert installed.state() == found


def test_two_runs_on_one_vm_go_back_in_their_reverse_order(installed: World) -> None:
    found = installed.state()
    installed.apply(installed.plan(gpus=(GPU_24GB,)))
    plan = installed.plan(high=256 << 30)
    refusal = CmdletError("Set-VM", "InvalidOperation", "OperationFailed", ("0x80131501",), "no")
    installed.answers.faults.add(InjectedFault("VmMmio", "set", refusal))
    with raises("StepFailed"):
        installed.apply(plan)
    assert installed.resume().holds
    first, second = installed.store.runs()
    assert (back(installed, second).kept, back(installed, first).kept) == ((), ())
    assert installed.state() == found


def test_two_runs_on_one_vm_go_back_in_their_own_order(installed: World) -> None:
    found = installed.state()
    installed.apply(installed.plan(gpus=(GPU_24GB,)))
    installed.apply(installed.plan())
    first, second = installed.store.runs()
    kept = back(installed, first).kept
    assert len(kept) == 4
    assert all("which came later" in sentence for sentence in kept)
    assert installed.machine.vms[installed.vm()].power == "running"
    assert back(installed, second).kept == ()
    assert back(installed, first).kept == ()
    assert installed.state() == found


def test_the_settings_stay_for_a_gpu_that_was_given_by_hand(installed: World) -> None:
    machine, vm = installed.machine, installed.vm()
    installed.apply(installed.plan(gpus=(GPU_24GB,)))
    made = machine.vms[vm].high
    machine.stop_vm(vm, timeout=300)
    installed.open().set(
        "AssignableDevice", GPU_16GB, {"assignment": f"assigned:{vm}"}, {}, {"accept": ["force-dismount"]}
    )
    machine.start_vm(vm)
    outcome = installed.rollback()
    assert machine.assignment(GPU_24GB) == "host-enabled"
    assert machine.assignment(GPU_16GB["location"]) == f"assigned:{vm}"
    assert (machine.vms[vm].high, machine.vms[vm].power) == (made, "running")
    assert [sentence for sentence in outcome.kept if GPU_16GB["location"] in sentence]


def test_what_went_with_our_role_is_not_kept(tmp_path: Path) -> None:
    here = world(tmp_path)
    here.apply(here.plan())
    assert here.rollback().kept == ()
    assert here.rollback().kept == ()


def hide(here: World, resource: str) -> None:
    here.machine.refusals[resource] = lambda: CmdletError(
        "Get-VM", "ReadError", "OperationFailed", ("0x80131501",), "no"
    )


def unhide(here: World, resource: str) -> None:
    del here.machine.refusals[resource]


def test_a_role_that_somebody_took_away_leaves_the_run_open_until_it_is_back(installed: World) -> None:
    found = installed.state()
    installed.apply(installed.plan(gpus=(GPU_24GB,)))
    installed.machine.role = installed.machine.tools = "available"
    for _ in range(2):
        outcome = installed.rollback()
        assert (outcome.outcome, outcome.changed, outcome.kept, outcome.holds) == ("not all rolled back", 0, (), False)
        assert {lacks.until for lacks in outcome.missing} == {"HyperVRole"}
        assert "NVIDIA GeForce RTX 4090" in {lacks.title for lacks in outcome.missing}
        assert f"winhost rollback {installed.run}" in (outcome.next or "")
    assert replay(installed.run, read_journal(installed.store.path(installed.run))).outcome == "not all rolled back"
    installed.machine.role = installed.machine.tools = "installed"
    assert installed.rollback().outcome == "rolled back"
    assert installed.state() == found


@pytest.mark.parametrize("resource", ["VmMmio", "VmMemory", "AssignableDevice", "ExternalSwitch"])
def test_nothing_goes_from_under_what_cannot_be_read(tmp_path: Path, resource: str) -> None:
    here = world(tmp_path)
    found = here.state()
    here.apply(here.plan(gpus=(GPU_24GB,)))
    hide(here, resource)
    outcome = here.rollback()
    assert (outcome.outcome, outcome.kept, here.machine.role) == ("not all rolled back", (), "installed")
    assert "Hyper-V role and its tools" in {lacks.title for lacks in outcome.missing}
    unhide(here, resource)
    assert here.rollback().outcome == "rolled back"
    assert here.state() == found


def test_a_role_without_its_tools_is_not_taken_away_unseen(tmp_path: Path) -> None:
    here = world(tmp_path)
    here.apply(here.plan(gpus=(GPU_24GB,)))
    here.machine.tools = "available"
    assert "what rests on the role" in " ".join(lacks.why for lacks in here.rollback().missing)
    assert here.machine.role == "installed"


def test_settings_of_a_vm_that_undoable_keep_the_role(tmp_path: Path) -> None:
    here = world(tmp_path)
    here.apply(here.plan(gpus=(GPU_24GB,)))
    other = here.vm("files-01")
    found = here.machine.vms[other].high
    here.machine.stop_vm(other, timeout=300)
    here.machine.set_vm(other, high=256 << 30)
    since = "Hyper-V role and its tools: kept: for files-01, which came later; undo that, then do this again"
    assert here.rollback().kept == (since,)
    here.machine.set_vm(other, high=found)
    assert here.rollback().kept == ()
    assert here.machine.role == "available"


def test_nothing_goes_back_for_whoever_may_not_see_what_other_runs_changed(installed: World) -> None:
    """Without their marks, what a later run changed would look like nobody's."""
    found = installed.state()
    installed.apply(installed.plan())
    made, lab = installed.state(), installed.machine.lab
    installed.machine.lab = lab.model_copy(update={"administrator": False})
    with pytest.raises(RunInterrupted, match="Only an administrator can see or change this"):
        installed.rollback()
    installed.machine.lab = lab
    assert installed.state() == made
    assert installed.rollback().outcome == "rolled back"
    assert installed.state() == found
