"""A VM that winhost makes for the GPUs: made whole, taken back whole, and nobody else's is touched."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cases import read_cases
from tests.engine.new_vm_world import CONSENTS, NAME, NewVmWorld, new_vm_world
from tests.errors import raises
from winhost.connect.wire_errors import RemoteError
from winhost.core.answers import Record
from winhost.engine.failures import ConsentNeeded, PlanRefused, RunInterrupted
from winhost.engine.planning import check_plan
from winhost.engine.run import apply
from winhost.engine.verify import verify_plan
from winhost.knowledge import catalogue
from winhost.lab.physics.host_state import HostDown
from winhost.lab.physics.lab_section import GuestPhysics
from winhost.model.fleet import Host, Transport
from winhost.model.units import GiB
from winhost.resources.host import HostFacts

CASES = read_cases(Path(__file__).parents[1] / "data" / "plans" / "new_vm_refused.yaml")


def gives_back(here: NewVmWorld, found: dict[str, Any], at: object = "") -> None:
    outcome = here.rollback()
    assert (outcome.outcome, outcome.kept, outcome.missing) == ("rolled back", (), ()), at
    assert here.state() == found, at
    assert not here.machine.software.registry_values, at


def test_a_vm_is_made_gets_the_gpus_runs_and_goes_as_it_came(tmp_path: Path) -> None:
    here = new_vm_world(tmp_path)
    found, plan = here.state(), here.plan()
    assert [step.resource for step in plan.steps] == ["StagedFile", "VmDisk", "OwnVm"]
    assert {each.until for each in plan.deferred} == {"OwnVm"}
    assert here.apply(plan).holds
    made = here.made
    assert (made.power, made.cpus, made.startup, made.dynamic_memory) == ("running", 8, 32 * GiB, False)
    assert (made.stop_action, made.start_action, made.checkpoint_type) == ("turn-off", "start", "disabled")
    assert (made.traits["secure_boot"], made.traits["secure_boot_template"]) == (
        True,
        "MicrosoftUEFICertificateAuthority",
    )
    assert made.com1 == f"\\\\.\\pipe\\{made.guid}"
    assert made.disks == [made.boots_from] == [f"D:\\VHDs\\winhost\\{NAME}\\disk.vhdx"]
    assert len(here.machine.devices_in_guest(made.guid)) == 3
    assert all(check.holds for check in verify_plan(check_plan(plan), HostFacts(here.facts())))
    gives_back(here, found)


def test_without_the_role_it_is_made_after_the_restart(tmp_path: Path) -> None:
    here = new_vm_world(tmp_path, "server2025-3gpu")
    found = here.state()
    assert here.apply(here.plan()).holds
    assert here.made.power == "running"
    gives_back(here, found)


def test_it_is_planned_again_as_it_is_and_nothing_is_left_to_do(tmp_path: Path) -> None:
    here = new_vm_world(tmp_path)
    here.apply(here.plan())
    assert list(here.plan().steps) == []


def test_it_has_the_vlan_and_switch_that_are_asked_for(tmp_path: Path) -> None:
    here = new_vm_world(tmp_path, switch="LAN", vlan=20, secure_boot=False)
    here.apply(here.plan())
    assert (here.made.vlan, here.made.traits["secure_boot"]) == (20, False)


@pytest.mark.parametrize("sockets", [1, 2])
def test_on_several_sockets_a_plan_says_that_numa_is_unverified(tmp_path: Path, sockets: int) -> None:
    here = new_vm_world(tmp_path)
    facts = here.facts()
    (one,) = facts.resources["Processor"]  # type: ignore[misc]
    plan = here.plan_of(replace(facts, resources={**facts.resources, "Processor": (one,) * sockets}))
    notes = [note.partition(".")[0] for note in plan.notes if note.endswith("[vm.numa]")]
    assert notes == ["unverified: the request: The host has 2 sockets"] * (sockets - 1)


SPANS_MEMORY = "The 32 GiB of the VM are more than the 8 GiB of one, so they span several."
SPANS_PROCESSORS = "Its 8 processors are more than the 4 of one, so they span several."


@pytest.mark.parametrize(
    ("node", "sockets", "threads", "said"),
    [
        (1, 2, 64, "On NUMA node 1: NVIDIA "),
        (None, 2, 8, None),
        (1, 16, 64, SPANS_MEMORY),
        (1, 2, 4, SPANS_PROCESSORS),
    ],
)
def test_it_says_where_the_gpus_are_and_whether_the_vm_spans_several(
    tmp_path: Path, node: int | None, sockets: int, threads: int, said: str | None
) -> None:
    here = new_vm_world(tmp_path)
    for device in here.machine.devices:
        device.enabled_state = {**device.enabled_state, "numa": node}
    facts = here.facts()
    (one,) = facts.resources["Processor"]  # type: ignore[misc]
    (memory,) = facts.resources["Memory"]  # type: ignore[misc]
    socket = Record({**one.state, "threads": threads})
    several = {"Processor": (socket,) * sockets, "Memory": (Record({**memory.state, "total": 128 << 30}),)}
    plan = here.plan_of(replace(facts, resources={**facts.resources, **several}))
    (note,) = (note for note in plan.notes if note.endswith("[vm.numa]"))
    assert ("NUMA node " in note.partition(" On which of them")[0]) is (node is not None)
    assert said is None or said in note, note
    assert [spans for spans in (SPANS_MEMORY, SPANS_PROCESSORS) if spans in note] == [
        spans for spans in (SPANS_MEMORY, SPANS_PROCESSORS) if spans == said
    ]


def test_sftp_that_nobody_said_how_to_enter_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    here = new_vm_world(tmp_path, upload="sftp")
    found, plan = here.state(), here.plan()
    of_fleet = Host(name=here.host, address="192.0.2.5", transport=Transport(port=5986))
    with raises("NoSftp", match="OpenSSH server") as refused:
        apply(check_plan(plan), CONSENTS, replace(here.context, machine=of_fleet))
    assert f"hosts.{here.host}.sftp: {{}}" in str(refused.value.hint)
    assert (here.state(), here.store.runs()) == (found, ())


WITH_NAT = (*CONSENTS, "network")


def behind_nat(folder: Path) -> NewVmWorld:
    """On a host without any switch."""
    here = new_vm_world(folder)
    here.machine.network.switches = []
    return here


def test_without_a_switch_it_is_behind_nat_and_reached_through_a_port_of_the_host(tmp_path: Path) -> None:
    here = behind_nat(tmp_path)
    found, plan = here.state(), here.plan()
    assert here.apply(plan, WITH_NAT).holds
    (switch,) = here.machine.network.switches
    assert (switch.state["kind"], here.made.switch) == ("internal", switch.guid)
    assert here.machine.nats.prefixes == {"winhost-nat": "192.168.211.0/24"}
    (forward,) = here.machine.network.proxies.items()
    assert forward == ("2222", "192.168.211.133/22")
    assert list(here.plan().steps) == []
    assert here.rollback(WITH_NAT).kept == ()
    assert here.state() == found


def test_a_network_behind_nat_stays_as_long_as_somebody_elses_vm_is_on_it(tmp_path: Path) -> None:
    here = behind_nat(tmp_path)
    here.apply(here.plan(), WITH_NAT)
    here.machine.lab = here.machine.lab.model_copy(update={"switch_vms": {"winhost-nat": 1}})
    assert (
        "Network 192.168.211.0/24 behind NAT: kept: 1 VM adapter(s) are connected to it" in here.rollback(WITH_NAT).kept
    )
    assert here.machine.nats.prefixes


def test_another_vm_takes_the_nat_that_is_there(tmp_path: Path) -> None:
    here = behind_nat(tmp_path)
    here.apply(here.plan(), WITH_NAT)
    network = here.machine.network
    here.settings = {**here.settings, "name": "llm-03", "ssh_port": 2223}
    plan = here.plan()
    assert {step.resource for step in plan.steps} >= {"OwnVm", "PortForward"}
    (vm,) = (step.desired for step in plan.steps if step.resource == "OwnVm")
    assert vm["switch"] == network.switches[0].guid
    assert not [step for step in plan.steps if step.resource == "NatSwitch"]


def test_going_back_asks_for_the_consent_before_its_first_step(tmp_path: Path) -> None:
    here = new_vm_world(tmp_path)
    here.apply(here.plan())
    made = here.state()
    with pytest.raises(ConsentNeeded) as caught:
        here.rollback(set(CONSENTS) - {"data"})
    assert "data" in str(caught.value)
    assert here.state() == made


def test_one_that_lost_its_mark_is_not_taken_away(tmp_path: Path) -> None:
    here = new_vm_world(tmp_path)
    here.apply(here.plan())
    here.made.notes = "mine now"
    outcome = here.rollback()
    assert "New VM llm-02: kept: its notes no longer have the mark that winhost put there" in outcome.kept
    assert any("Disk of the new VM" in each for each in outcome.kept)
    assert here.made.disks


def test_one_that_somebody_took_away_leaves_only_its_disk_to_undo(tmp_path: Path) -> None:
    here = new_vm_world(tmp_path)
    found = here.state()
    here.apply(here.plan())
    here.machine.turn_vm_off(here.made.guid)
    for location in [each.location for each in here.made.assignments]:
        here.machine.remove_vm_assignable_device(here.made.guid, location)
    here.machine.remove_vm(here.made.guid)
    gives_back(here, found)


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_before_anything_is_made(tmp_path: Path, name: str) -> None:
    case = dict(CASES[name])
    here = new_vm_world(tmp_path, case.pop("host", "server2025-role-installed"), **case.pop("settings", {}))
    here.machine.nats.prefixes |= case.pop("nats", {})
    for adapter in here.machine.network.adapters.values():
        adapter.state["dns"] = case.get("name_servers", adapter.state["dns"])
    case.pop("name_servers", None)
    for switch in case.pop("without_switches", ()):
        here.machine.network.switches = [e for e in here.machine.network.switches if e.state["name"] != switch]
    with pytest.raises(PlanRefused) as caught:
        here.plan()
    assert caught.value.grounds.codes == (case.pop("refused"),)
    assert case.pop("says", "") in str(caught.value.meaning)
    assert not case
    assert all(catalogue.entry(code) for code in caught.value.grounds.codes)


FAILING = {
    "no room": ({"new_vms": {"free": 50 << 30}}, "Winhost.NoRoom"),
    "a compressed folder": ({"new_vms": {"attributes": ["Compressed"]}}, "Winhost.DiskAttributes"),
    "something is there": ({"new_vms": {"taken": [f"D:\\VHDs\\winhost\\{NAME}\\notes.txt"]}}, "Winhost.NotOurs"),
    "the template is refused": ({"new_vms": {"refuses_template": True}}, "Winhost.TemplateRefused"),
}


@pytest.mark.parametrize("name", FAILING)
def test_what_only_the_host_finds_ends_the_run_and_all_of_it_goes_back(tmp_path: Path, name: str) -> None:
    lab, code = FAILING[name]
    here = new_vm_world(tmp_path, lab=lab)
    found = here.state()
    with pytest.raises(RunInterrupted) as caught:
        here.apply(here.plan())
    cause = caught.value.__cause__
    assert isinstance(cause, RemoteError)
    assert cause.fault.code == code
    assert here.rollback().outcome == "rolled back"
    assert here.state() == found


# ---- the host goes down in the middle

CMDLETS = ("resize_vhd", "new_vm", "set_vm", "set_vm_secure_boot", "add_vm_hard_disk_drive")


def goes_down_after(here: NewVmWorld, monkeypatch: pytest.MonkeyPatch, cmdlet: str) -> None:
    """Once, as soon as that cmdlet has done its work: nobody gets an answer."""
    real = getattr(here.machine, cmdlet)

    def then_down(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        monkeypatch.undo()
        here.machine.restart_computer()
        here.machine.wait_until_ready()
        raise HostDown

    monkeypatch.setattr(here.machine, cmdlet, then_down)


@pytest.mark.costly
@pytest.mark.parametrize("cmdlet", CMDLETS)
def test_a_host_that_restarts_in_the_middle_has_the_vm_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cmdlet: str
) -> None:
    here = new_vm_world(tmp_path)
    found, plan = here.state(), here.plan()
    goes_down_after(here, monkeypatch, cmdlet)
    assert here.apply(plan).holds
    assert [vm.name for vm in here.machine.vms.values()].count(NAME) == 1
    assert len(here.made.disks) == 1
    gives_back(here, found)


def test_a_host_that_restarts_while_the_vm_goes_ends_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = new_vm_world(tmp_path)
    found = here.state()
    here.apply(here.plan())
    goes_down_after(here, monkeypatch, "remove_vm")
    gives_back(here, found)


def test_a_guest_that_never_answers_is_turned_off_to_take_it_away_only_with_consent(tmp_path: Path) -> None:
    here = new_vm_world(tmp_path)
    found = here.state()
    here.apply(here.plan())
    here.machine.lab.guests[here.made.guid] = GuestPhysics(answers=False)  # type: ignore[index]  # of this test alone
    with pytest.raises(RunInterrupted):
        here.rollback(set(CONSENTS) - {"vm-turn-off"})
    assert here.made.power == "running"
    gives_back(here, found)
