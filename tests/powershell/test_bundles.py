"""A bundle by hand and `winhost apply` from the same start do the same steps and end in the same state."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.world import PLAYBOOK, DirectWire, world
from tests.powershell.bundle_cases import INSTALLED, Case, as_compared, case, person
from tests.powershell.bundles import (
    ByHand,
    Person,
    filmed,
    listening,
    twin,
    unpack,
)
from tests.powershell.twins import ENGINES_OWN, machine
from winhost.connect.agent import Agent
from winhost.core.rollback import LaterRuns
from winhost.engine.detect import read_facts
from winhost.engine.journal import read_journal
from winhost.engine.planning import make_plan
from winhost.engine.rollback import preview
from winhost.engine.run_state import replay
from winhost.lab.contract.agent_answers import AgentAnswers
from winhost.lab.powershell.calls.cmdlet_process import BoundParameters
from winhost.model.documents import plain
from winhost.model.facts import Facts
from winhost.model.plan import Plan, PlanRequest
from winhost.paths.playbook import parse_request
from winhost.resources.host import HostFacts

__all__ = ["case", "person"]


# One stage each: with the role, of another Windows, with names that look like code, GPUs half-way gone.
ONE_STAGE = (INSTALLED, "server2022-2gpu", "hostile-vm-names", "gpu-dismounted", "gpu-partitioned")
GPU_24GB = "PCIROOT(49)#PCI(0100)#PCI(0000)"
GPU_16GB = "PCIROOT(16)#PCI(0100)#PCI(0000)"


# ---- a VM's power that nobody asked for


def needing_only(facts: Facts) -> Plan:
    """A plan that moves the VM's power for its other steps alone."""
    resources = [desired for desired in PLAYBOOK["resources"] if desired["resource"] != "VmPower"]
    return make_plan(
        HostFacts(facts), parse_request(PlanRequest("dda", {**PLAYBOOK, "resources": resources}, "llm-01"))
    )


def begun_in(journal: Path) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in journal.read_text("ascii").splitlines()]
    return [entry["step"] for entry in entries if entry["event"] == "begin"]


def test_what_was_moved_for_others_is_given_back_by_whoever_goes_on(person: Person, tmp_path: Path) -> None:
    other = world(tmp_path / "store", INSTALLED)
    found = other.state()
    plan = needing_only(other.facts())
    here = ByHand(person, twin(other.machine), tmp_path / "journals")
    made = unpack(plan, tmp_path / "bundle", watched=True)
    with filmed(here, tmp_path / "there") as there:
        assert here.apply(made).said["outcome"] == "applied"
    other.apply(plan)
    assert here.state() == other.state()
    assert here.machine.vms[other.vm()].power == "running"
    for moment in there:
        assert moment.here.apply(made).said["outcome"] == "applied", moment.name
        assert moment.here.state() == other.state(), moment.name
        begun = [step for journal in moment.here.journals.glob("*.jsonl") for step in begun_in(journal)]
        assert {step["role"] for step in begun if step["resource"] == "VmPower"} == {"need", "restore"}, moment.name
        assert moment.here.rollback(made).said["outcome"] == "rolled back", moment.name
        assert moment.here.state() == found, moment.name


def test_a_vm_that_was_given_back_and_stopped_by_somebody_since_stays_off(person: Person, tmp_path: Path) -> None:
    here = ByHand(person, machine(INSTALLED), tmp_path / "journals")
    made = unpack(needing_only(here.machine.facts()), tmp_path / "bundle", watched=True)
    with filmed(here, tmp_path / "there") as there:
        here.apply(made)
    (ended,) = (moment.here for moment in there if moment.name.endswith("before-stage"))
    (vm,) = (vm for vm in ended.machine.vms.values() if vm.name == "llm-01")
    ended.machine.stop_vm(vm.guid, timeout=300)
    assert ended.apply(made).said["changed"] == 0
    assert vm.power == "off"


# ---- a process of its own, and its death


def test_a_killed_process_is_followed_by_one_that_goes_on(person: Person, tmp_path: Path) -> None:
    other = world(tmp_path / "store", INSTALLED)
    plan = other.plan()
    host = twin(other.machine)
    made = unpack(plan, tmp_path / "bundle", watched=True, alone=True)
    words = ("-JournalFolder", str(tmp_path / "journals"), "-Accept", "vm-stop,force-dismount")
    assert person.alone(host, made / "Apply.ps1", *words, kill_at="end").code not in (0, 1, 2, 4)
    assert other.machine.comparable_state() != host.comparable_state()
    done = person.alone(host, made / "Apply.ps1", *words)
    assert done.code == 0, done.output
    assert f"applied, changes: {len(list(plan.steps)) - 1}" in done.output
    other.apply(plan)
    assert other.state() == host.comparable_state()


def test_how_it_ended_is_said_where_it_cannot_be_kept(case: Callable[..., Case], tmp_path: Path) -> None:
    it = case()
    made = unpack(it.plan, tmp_path / "watched", watched=True)

    def stand_in_the_way(given: BoundParameters) -> None:
        Path(given["journal"]).with_suffix(".result.json").mkdir(exist_ok=True)

    with listening(stand_in_the_way):
        assert it.here.apply(made).said["outcome"] == "applied"


# ---- the same steps as the engine


@pytest.mark.parametrize("host", ONE_STAGE)
def test_the_steps_are_those_of_the_engine_there_and_back(case: Callable[..., Case], host: str) -> None:
    it = case(host)
    here, other = it.here, it.other
    found = here.machine.snapshot()
    assert as_compared(here.apply(it.made, "-WhatIf").said["steps"]) == as_compared(it.plan.stages[0].steps)
    assert here.machine.snapshot() == found
    assert not here.journals.exists()
    assert here.apply(it.made).said["changed"] == other.apply(it.plan).changed > 0
    assert here.state() == other.state()
    undo, _ = preview(replay(other.run, read_journal(other.store.path(other.run))), other.facts(), LaterRuns())
    made = here.machine.snapshot()
    assert as_compared(here.rollback(it.made, "-WhatIf").said["steps"]) == as_compared(undo)
    assert here.machine.snapshot() == made
    assert here.rollback(it.made).said["outcome"] == other.rollback().outcome == "rolled back"
    assert here.state() == other.state()


@pytest.mark.parametrize("host", [*ONE_STAGE, "server2025-3gpu", "win11-pro-1gpu", "not-administrator"])
def test_facts_are_what_the_wire_reads(person: Person, case: Callable[..., Case], tmp_path: Path, host: str) -> None:
    any_bundle = case().made
    here = ByHand(person, machine(host), tmp_path / "unused")
    wire = read_facts(Agent(DirectWire(here.machine.name, AgentAnswers(here.machine)), 60))
    found = here.facts(any_bundle)
    assert (found.schema, found.origin) == (wire.schema, "synthetic")
    read, expected = comparable(found), comparable(wire)
    assert list(found.resources) == [resource for resource in found.resources if resource in expected]
    assert {resource: read[resource] for resource in wire.resources} == expected


def comparable(facts: Facts) -> dict[str, Any]:
    """Without an order of instances, and without what is the engine's own."""
    resources = plain(facts.resources)
    for resource, answer in resources.items():
        if isinstance(answer, list):
            for each in answer:
                each["state"] |= dict.fromkeys(ENGINES_OWN.get(resource, ()), "its own")
            answer.sort(key=lambda each: json.dumps(each["key"], sort_keys=True))
    return dict(resources)
