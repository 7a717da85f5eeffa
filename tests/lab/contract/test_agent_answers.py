"""The simulated host's answers to the agent's JSON contract."""

import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from tests.rows import each_row
from winhost.core.answers import Record, Unavailable
from winhost.lab.contract.agent_answers import AgentAnswers, InjectedFault, PipelineStopped
from winhost.lab.hostfile import expand, find
from winhost.lab.physics.host_state import HostDown
from winhost.lab.physics.lab_section import LabClock
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import CmdletError
from winhost.resources.base import ResourceType, State
from winhost.resources.registry import WINDOWS, WINDOWS_STATES
from winhost.resources.values import FLAG
from winhost.resources.windows.distros import WslAccess, WslConf, WslDistro, WslVm

VM = "8d1f3c52-6a2e-4b7d-9c41-0e5f7a6b2d10"
FILES = "c47a9e18-52d3-4f60-8a7b-1d93e6c0b5f4"
L40S = {"location": "PCIROOT(7B)#PCI(0100)#PCI(0000)", "device": "VEN_10DE&DEV_26B9&SUBSYS_185110DE"}
RTX_4090 = {"location": "PCIROOT(49)#PCI(0100)#PCI(0000)", "device": "VEN_10DE&DEV_2684&SUBSYS_16F310DE"}
WAIT = 10.0


class Host:
    """A lab host as a controller sees it."""

    def __init__(self, name: str, clock: LabClock | None = None) -> None:
        facts, lab = expand(find(name))
        self.machine = Machine(facts, lab, clock)
        self.agent = AgentAnswers(self.machine)

    def batch(self, *calls: dict[str, Any], exclusive: bool = False) -> list[dict[str, Any]]:
        request = json.dumps({"exclusive": exclusive, "calls": calls})
        answers: list[dict[str, Any]] = json.loads(self.agent.invoke(request))["answers"]
        return answers

    def get(self, resource: str, key: dict[str, str] | None = None) -> dict[str, Any]:
        return self.batch({"resource": resource, "verb": "get", "key": key})[0]

    def set(self, resource: str, key: dict[str, str], desired: dict[str, Any], **rest: Any) -> dict[str, Any]:
        return self.batch({"resource": resource, "verb": "set", "key": key, "desired": desired, **rest})[0]

    def assign(self, key: dict[str, str], assignment: str, **rest: Any) -> dict[str, Any]:
        return self.set("AssignableDevice", key, {"assignment": assignment}, **rest)


@pytest.fixture
def host() -> Host:
    """Hyper-V is there, both VMs run."""
    return Host("server2025-role-installed")


@pytest.fixture
def ready(host: Host) -> Host:
    """llm-01 is off and may have a device."""
    for resource, desired in (
        ("VmPower", {"state": "off"}),
        ("VmActions", {"stop": "turn-off"}),
        ("VmCheckpoints", {"kind": "disabled", "automatic": False}),
        ("VmMemory", {"dynamic": False}),
    ):
        assert host.set(resource, {"vm": VM}, desired)["ok"]
    return host


def test_all_resources_answer_in_one_batch_and_say_that_they_are_simulated(host: Host) -> None:
    answers = host.batch(*({"resource": state.resource_type.name, "verb": "get"} for state in WINDOWS_STATES))
    told = [(state, answer) for state, answer in zip(WINDOWS_STATES, answers, strict=True) if answer["ok"]]
    # There is no WSL.
    assert set(WINDOWS_STATES) - {state for state, _ in told} == {WslAccess, WslConf, WslDistro, WslVm}
    assert answers[0]["instances"][0]["state"]["simulated"] is True
    for state, answer in told:
        assert all(set(instance["key"]) == set(state.resource_type.key) for instance in answer["instances"])
        if not state.resource_type.key:
            assert len(answer["instances"]) == 1


@each_row("name", ["server2025-3gpu", "server2025-role-installed", "win11-wsl-served", "win11-dual-boot-bitlocker"])
def test_a_replica_of_what_a_whole_read_told_answers_the_same(name: str) -> None:
    """Such a read leaves values out, like the firmware's entries."""
    host, names = Host(name), [state.resource_type.name for state in WINDOWS_STATES]
    told = dict(zip(names, host.batch(*({"resource": each, "verb": "get"} for each in names)), strict=True))
    read = {
        each: tuple(Record(found["state"], found["key"]) for found in answer["instances"])
        if answer["ok"]
        else Unavailable(answer["unavailable"])
        for each, answer in told.items()
    }
    host.agent = AgentAnswers(Machine(replace(expand(find(name))[0], resources=read)))
    again = dict(zip(names, host.batch(*({"resource": each, "verb": "get"} for each in names)), strict=True))
    assert {each: answer for each, answer in again.items() if answer != told[each]} == {}


def test_a_key_gives_one_state_or_none(host: Host) -> None:
    assert host.get("Vm", {"vm": VM.upper()})["state"]["name"] == "llm-01"
    assert host.get("Vm", {"vm": "00000000-0000-0000-0000-000000000000"})["state"] is None
    assert host.get("Boot", {})["state"]["logon_ready"] is True


def test_what_cannot_exist_yet_is_unavailable_for_get_and_set() -> None:
    host = Host("server2025-3gpu")
    assert host.get("Vm") == {"ok": False, "unavailable": "HyperVRole"}
    assert host.set("VmPower", {"vm": VM}, {"state": "off"}) == {"ok": False, "unavailable": "HyperVRole"}
    assert host.get("HyperVRole", {})["state"] == {"role": "available", "tools": "available", "vms": 0}


def test_a_set_tells_before_and_after(host: Host) -> None:
    answer = host.set("VmCheckpoints", {"vm": VM}, {"kind": "disabled"}, expect={"kind": "production"})
    assert answer == {
        "ok": True,
        "before": {"kind": "production", "automatic": True},
        "after": {"kind": "disabled", "automatic": True},
        "restart": [],
        "warnings": [],
    }


def test_what_is_so_already_is_not_set_again(host: Host) -> None:
    host.agent.faults.add(
        InjectedFault("VmActions", "set", CmdletError("Set-VM", "NotSpecified", "X", (), "must not be called"))
    )
    answer = host.set("VmActions", {"vm": VM}, {"stop": "save"})
    assert answer["ok"]
    assert answer["before"] == answer["after"]


def test_drift_changes_nothing(host: Host) -> None:
    before = host.machine.snapshot()
    answer = host.set("VmCheckpoints", {"vm": VM}, {"kind": "disabled"}, expect={"kind": "standard"})
    assert answer["ok"] is False
    assert answer["drift"] == {"kind": {"expected": "standard", "found": "production"}}
    assert host.machine.snapshot() == before


def test_a_failed_set_tells_the_error_and_the_rest_of_the_batch_is_skipped(host: Host) -> None:
    change = {"resource": "VmMmio", "verb": "set", "key": {"vm": VM}, "desired": {"low": 1 << 30}}
    later = {"resource": "VmCheckpoints", "verb": "set", "key": {"vm": VM}, "desired": {"kind": "disabled"}}
    failed, skipped, read = host.batch(change, later, {"resource": "VmCheckpoints", "verb": "get", "key": {"vm": VM}})
    assert failed["error"]["code"] == "InvalidState,Microsoft.HyperV.PowerShell.Commands.SetVM"
    assert failed["before"] == failed["after"]
    assert skipped["error"]["code"] == "Winhost.Skipped"
    assert read["state"]["kind"] == "production"


@each_row(
    ("call", "code"),
    [
        ({"resource": "Nonsense", "verb": "get"}, "Winhost.UnknownNoun"),
        ({"resource": "Nonsense", "verb": "set", "key": {}, "desired": {"a": 1}}, "Winhost.UnknownNoun"),
        ({"resource": "Vm", "verb": "paint"}, "Winhost.BadRequest"),
        ({"resource": "Vm", "verb": "get", "key": {"name": "llm-01"}}, "Winhost.BadRequest"),
        ({"resource": "Vm", "verb": "set", "key": {"vm": VM}, "desired": {"name": "x"}}, "Winhost.BadRequest"),
        ({"resource": "VmMemory", "verb": "set", "key": {"vm": VM}, "desired": {"startup": 1}}, "Winhost.BadRequest"),
        ({"resource": "VmMmio", "verb": "set", "key": {"vm": VM}, "desired": {"middle": 1}}, "Winhost.BadRequest"),
        ({"resource": "VmMmio", "verb": "set", "key": {"vm": VM}}, "Winhost.BadRequest"),
        (
            {"resource": "VmPower", "verb": "set", "key": {"vm": "gone"}, "desired": {"state": "off"}},
            "Winhost.NotFound",
        ),
        (
            {"resource": "VmPower", "verb": "set", "key": {"vm": VM}, "desired": {"state": "melted"}},
            "Winhost.BadRequest",
        ),
        ({"resource": "Vm", "verb": "restart"}, "Winhost.BadRequest"),
        (
            {"resource": "AssignableDevice", "verb": "set", "key": L40S, "desired": {"assignment": "moon"}},
            "Winhost.BadRequest",
        ),
        (
            {"resource": "AssignableDevice", "verb": "set", "key": L40S, "desired": {"assignment": "assigned:x"}},
            "Winhost.BadRequest",
        ),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(host: Host, call: dict[str, Any], code: str) -> None:
    before = host.machine.snapshot()
    (answer,) = host.batch(call)
    assert (answer["ok"], answer["error"]["code"]) == (False, code)
    assert host.machine.snapshot() == before


def test_a_fault_of_the_simulator_is_told_as_its_own(host: Host) -> None:
    before = host.machine.snapshot()
    (answer,) = host.batch(
        {"resource": "AccountRight", "verb": "set", "desired": {"granted": True}}
        | {"key": {"account": "Administrator", "right": "SeNobodySimulatesThis"}}
    )
    assert (answer["error"]["category"], answer["error"]["code"]) == ("NotImplemented", "Lab.NotStoodIn")
    assert "The simulator cannot do this (KeyError('SeNobodySimulatesThis'))." in answer["error"]["message"]
    assert host.machine.snapshot() == before


@pytest.mark.parametrize("restarts", [False, True])
def test_a_resource_that_declares_nothing_special_needs_nothing_here(
    host: Host, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    lamp = ResourceType("Lamp", "lamps", key=("lamp",), sets={"on": FLAG}, absent={"on": False}, restarts=restarts)
    monkeypatch.setitem(WINDOWS._cache, "Lamp", lamp)
    before = host.machine.comparable_state()
    for on, there in ((True, [{"key": {"lamp": "a"}, "state": {"on": True}}]), (False, [])):
        answer = host.set("Lamp", {"lamp": "a"}, {"on": on}, expect={"on": not on})
        assert (answer["ok"], answer["after"], answer["restart"] != []) == (True, {"on": on}, restarts)
        assert host.get("Lamp")["instances"] == there
    assert host.set("Lamp", {"lamp": "a"}, {"on": 1})["error"]["code"] == "Winhost.BadRequest"
    denied = Host("not-administrator").set("Lamp", {"lamp": "a"}, {"on": True})
    assert denied["error"]["code"] == "Winhost.NotAdministrator"
    assert host.machine.comparable_state() == {**before, "Lamp": []}


def test_a_resource_that_a_host_has_once_needs_its_usual_state_and_nothing_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lamp = ResourceType("Lamp", "the lamp", sets={"on": FLAG}, usual={"on": False})
    monkeypatch.setitem(vars(WINDOWS), "states", (*WINDOWS.states, type("Lamp", (State,), {"resource_type": lamp})))
    monkeypatch.setitem(WINDOWS._cache, "Lamp", lamp)
    host = Host("server2025-3gpu")
    assert host.get("Lamp")["instances"] == [{"key": {}, "state": {"on": False}}]
    assert host.set("Lamp", {}, {"on": True})["after"] == {"on": True}


def test_what_is_special_is_said_of_resources_that_can_be_set() -> None:
    assert set(Host("server2025-3gpu").machine.changes) <= {name for name, resource in WINDOWS.items() if resource.sets}


def test_a_gpu_climbs_the_whole_ladder_and_down_again(ready: Host) -> None:
    before = ready.machine.comparable_state()
    up = ready.assign(L40S, f"assigned:{VM}")
    assert (up["before"]["assignment"], up["after"]["assignment"]) == ("host-enabled", f"assigned:{VM}")
    assert ready.get("Vm", {"vm": VM})["state"]["devices"] == [L40S["location"]]
    down = ready.assign(L40S, "host-enabled")
    assert (down["before"]["assignment"], down["after"]["assignment"]) == (f"assigned:{VM}", "host-enabled")
    assert ready.machine.comparable_state() == before


def test_force_takes_its_consent_and_what_was_done_before_the_refusal_is_told(ready: Host) -> None:
    refused = ready.assign(RTX_4090, f"assigned:{VM}")
    assert refused["error"]["cmdlet"] == "Dismount-VMHostAssignableDevice"
    assert (refused["before"]["assignment"], refused["after"]["assignment"]) == ("host-enabled", "host-disabled")
    assert ready.assign(RTX_4090, f"assigned:{VM}", how={"accept": ["force-dismount"]})["ok"]


def test_a_gpu_goes_from_one_vm_to_another(ready: Host) -> None:
    ready.assign(L40S, f"assigned:{VM}")
    ready.set("VmPower", {"vm": FILES}, {"state": "off"})
    answer = ready.assign(L40S, f"assigned:{FILES}")
    assert answer["after"]["assignment"] == f"assigned:{FILES}"
    assert ready.get("Vm", {"vm": VM})["state"]["devices"] == []


def test_a_stale_assignment_can_be_taken_away() -> None:
    host = Host("assignment-stale")
    gone = {**L40S, "location": "PCIROOT(9E)#PCI(0100)#PCI(0000)"}
    assert host.get("AssignableDevice", gone)["state"] == {"assignment": f"assigned:{VM}", "present": False}
    host.assign(gone, "dismounted")
    assert host.get("AssignableDevice", gone)["state"] is None
    assert host.set("VmPower", {"vm": VM}, {"state": "running"})["ok"]


def test_turning_a_vm_off_takes_its_own_consent() -> None:
    host = Host("guest-does-not-answer")
    refused = host.set("VmPower", {"vm": VM}, {"state": "off"}, how={"within": 30})
    assert (refused["error"]["code"], refused["after"]) == ("Winhost.GuestDidNotStop", {"state": "running"})
    agreed = host.set("VmPower", {"vm": VM}, {"state": "off"}, how={"within": 30, "accept": ["vm-turn-off"]})
    assert agreed["after"] == {"state": "off"}


def test_saved_memory_is_not_thrown_away() -> None:
    answer = Host("vm-saved").set("VmPower", {"vm": VM}, {"state": "off"}, how={"accept": ["vm-turn-off"]})
    assert (answer["ok"], answer["after"]) == (False, {"state": "saved"})


def test_power_goes_everywhere_and_back(host: Host) -> None:
    for state in ("paused", "running", "saved", "running", "off", "running"):
        assert host.set("VmPower", {"vm": VM}, {"state": state})["after"] == {"state": state}


def test_the_role_reports_its_restart_and_comes_with_it() -> None:
    host = Host("server2025-3gpu")
    boot = host.get("Boot", {})["state"]["boot_id"]
    answer = host.set("HyperVRole", {}, {"role": "installed", "tools": "installed"})
    assert (answer["restart"], answer["after"]["role"]) == ([{"system": "host"}], "install-pending")
    assert host.batch({"resource": "Boot", "verb": "restart"})[0]["ok"]
    host.machine.wait_until_ready()
    assert host.get("Boot", {})["state"]["boot_id"] != boot
    assert host.get("HyperVRole", {})["state"] == {"role": "installed", "tools": "installed", "vms": 2}
    assert host.get("VmPower", {"vm": VM})["state"] == {"state": "running"}


def test_an_edition_without_the_role_refuses_it() -> None:
    answer = Host("win11-home-1gpu").set("HyperVRole", {}, {"role": "installed"})
    assert answer["error"]["code"] == "Winhost.FeatureNotHere"


def test_a_restart_that_is_under_way_is_what_was_asked_for() -> None:
    host = Host("server2025-role-installed", LabClock(scale=10.0))
    assert [host.batch({"resource": "Boot", "verb": "restart"})[0]["ok"] for _ in range(2)] == [True, True]


def test_access_denied_is_an_answer() -> None:
    host = Host("not-administrator")
    denied = host.get("Vm")["error"]
    assert (denied["category"], denied["hresults"][-1]) == ("PermissionDenied", "0x80070005")
    assert host.get("PciDevice")["ok"]


def test_a_fault_strikes_as_often_as_ordered_and_may_come_after_the_change(host: Host) -> None:
    lost = CmdletError("Set-VM", "ResourceUnavailable", "Lost", ("0x800706BA",), "The RPC server is unavailable.")
    host.agent.faults.add(InjectedFault("VmCheckpoints", "set", lost, after_change=True))
    host.agent.faults.add(InjectedFault("VmCheckpoints", "set", lost, times=2))
    answers = [host.set("VmCheckpoints", {"vm": VM}, {"automatic": flag}) for flag in (False, True, True, True)]
    assert [answer["ok"] for answer in answers] == [False, False, False, True]
    # The first was done all the same, which is what the second finds before.
    assert answers[0]["after"]["automatic"] is False
    assert answers[1]["before"]["automatic"] is answers[1]["after"]["automatic"] is False


def test_an_exclusive_batch_waits_for_a_set_that_outlived_its_controller() -> None:
    host = Host("server2025-role-installed", LabClock(scale=0.01))
    outliving = threading.Thread(target=host.set, args=("VmPower", {"vm": VM}, {"state": "off"}))
    outliving.start()
    while outliving.is_alive() and host.machine.mutex.acquire(blocking=False):
        host.machine.mutex.release()
    (meanwhile,) = host.batch({"resource": "VmPower", "verb": "get", "key": {"vm": VM}})
    (settled,) = host.batch({"resource": "VmPower", "verb": "get", "key": {"vm": VM}}, exclusive=True)
    outliving.join(WAIT)
    assert (meanwhile["state"], settled["state"]) == ({"state": "running"}, {"state": "off"})


def test_whoever_waits_for_the_mutex_can_be_stopped() -> None:
    host = Host("server2025-role-installed")
    stop = threading.Event()
    stop.set()
    outcome: list[BaseException] = []

    def ask() -> None:
        try:
            host.agent.invoke(json.dumps({"exclusive": True, "calls": []}), stop)
        except PipelineStopped as error:
            outcome.append(error)

    with host.machine.mutex:
        asking = threading.Thread(target=ask)
        asking.start()
        asking.join(WAIT)
    assert len(outcome) == 1


def test_a_set_that_was_stopped_before_its_turn_changes_nothing() -> None:
    """Its controller is gone, and whoever rolls back may have read the host before the mutex was free for it."""
    host = Host("server2025-role-installed")
    stop = threading.Event()
    stop.set()
    key = {"vm": VM}
    late = {"resource": "VmPower", "verb": "set", "key": key, "desired": {"state": "off"}, "expect": {}, "how": {}}
    with pytest.raises(PipelineStopped):
        host.agent.invoke(json.dumps({"exclusive": True, "calls": [late]}), stop)
    assert host.get("VmPower", key)["state"] == {"state": "running"}


def test_a_host_that_goes_down_meanwhile_gives_no_answer() -> None:
    host = Host("server2025-role-installed")
    host.machine.restart_computer()
    host.machine.wait_until_ready()
    boot = host.machine.boot
    host.agent.faults.add(InjectedFault("Boot", "get", seconds=1))
    host.machine.clock = LabClock()  # the pause below is ours, not the clock's
    slow = _RestartsWhileAsleep(host.machine)
    host.machine.clock = slow
    with pytest.raises(HostDown):
        host.get("Boot", {})
    assert host.machine.boot == boot + 1


class _RestartsWhileAsleep(LabClock):
    """The first call that sleeps finds its host restarted when it wakes."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        object.__setattr__(self, "machine", machine)

    def sleep(self, lab_seconds: float, stop: threading.Event | None = None) -> None:
        machine: Machine = self.__dict__["machine"]
        machine.clock = LabClock()
        machine.restart_computer()
        machine.wait_until_ready()


def test_a_session_of_an_earlier_boot_changes_and_restarts_nothing(host: Host) -> None:
    boot, machine = host.machine.boot, host.machine
    machine.restart_computer()
    machine.wait_until_ready()
    for call in ({"resource": "Boot", "verb": "restart"}, {"resource": "VmPower", "verb": "set", "key": {"vm": VM}}):
        asked = json.dumps({"calls": [{**call, "desired": {"state": "off"}}]})
        with machine.session_scope(lambda: machine.boot == boot), pytest.raises(HostDown):
            host.agent.invoke(asked)
    machine.wait_until_ready()
    assert (machine.boot, machine.vms[VM].power) == (boot + 1, "running")
