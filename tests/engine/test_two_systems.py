"""Two systems that take turns on a machine: who answers, what is remembered of Windows, and what is changed when."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.errors import raises
from winhost.connect.agent import Agent
from winhost.connect.wire_errors import Drifted, NotAvailable, Unreachable
from winhost.core.answers import Json, Record, RemoteFault, Unavailable, Unknown
from winhost.engine.boot import LinuxFirmware
from winhost.engine.store import Store
from winhost.engine.two_systems import RememberedWindows, TwoSystems, runs_linux
from winhost.model.facts import Answer, Facts
from winhost.model.fleet import Host, LinuxHost, Ssh, Transport
from winhost.model.secrets import SecretRef
from winhost.resources.registry import host_answers
from winhost.resources.windows.boot_entries import BootEntry

KEY = "ssh-ed25519 " + "A" * 68
HOST = Host(
    name="desk-01", address="192.0.2.7", transport=Transport(port=5986), ssh=Ssh(key=SecretRef.parse("file:/nowhere"))
)
INSTALLER: Mapping[str, Json] = {
    "made": True,
    "partition": "p",
    "image": "i",
    "files": "f",
    "user": "winhost",
    "address": None,
    "host_key": KEY,
    "ticket": None,
}
SAID: dict[str, Answer] = {
    "UbuntuInstaller": (Record(INSTALLER, {"name": "ubuntu"}),),
    "RunningSystem": (Record({"system": "windows", "linux": None, "installer": "0005"}),),
    "FastStartup": (Record({"hibernation": False, "fast_startup": False}),),
    "Disk": Unknown(RemoteFault("NotSpecified", "Winhost.Broken")),
    "OwnVm": Unavailable("HyperVRole"),
}
WINDOWS_ENTRY = BootEntry("0000", "Windows Boot Manager", True, "esp", "\\EFI\\Microsoft\\Boot\\bootmgfw.efi")
UBUNTU_ENTRY = BootEntry("0006", "ubuntu", True, "esp", "\\EFI\\ubuntu\\shimx64.efi")


def facts(resources: Mapping[str, Answer]) -> Facts:
    return Facts("desk-01", "synthetic", "2026-11-26T10:00:00+00:00", "0", dict(resources))


class Wire:
    """Answers what the Linux agent would; asked: each call."""

    host = "desk-01/ubuntu"

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def invoke(self, request: str, within: float) -> str:
        answers: list[dict[str, Any]] = []
        for call in json.loads(request)["calls"]:
            self.asked.append(call)
            answers.append(self._answer(call))
        return json.dumps({"answers": answers})

    def _answer(self, call: Mapping[str, Any]) -> dict[str, Any]:
        if call["verb"] == "restart":
            return {"ok": True, "restarting": True}
        if call["verb"] == "get" and "key" not in call:
            return {"ok": True, "instances": []}
        if call["verb"] == "get":
            return {"ok": True, "state": {"boot_id": "b"}}
        return {"ok": True, "before": {}, "after": call["desired"], "restart": False, "warnings": []}

    def close(self) -> None:
        pass


class Silent:
    """The way to a Windows that does not run."""

    host = "desk-01"

    def open(self) -> Agent:
        raise Unreachable("desk-01", "nobody answers")


class Firmware:
    """What linux_boot would answer, and what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Json]] = []
        self.next: str | None = None
        self.entries: tuple[BootEntry, ...] = (WINDOWS_ENTRY, UBUNTU_ENTRY)

    def __call__(self, target: LinuxHost, program: str, **request: Json) -> LinuxFirmware:
        self.asked.append(request)
        to = request.get("to")
        self.next = {"windows": "0000", "linux": "0006"}[str(to)] if to else self.next
        return LinuxFirmware("b", "0006", self.next, ("0000", "0006"), self.entries, None)


@pytest.fixture
def memory(tmp_path: Path) -> RememberedWindows:
    made = RememberedWindows(Store(tmp_path / "state"), "desk-01")
    made.keep(facts(SAID))
    return made


@pytest.fixture
def firmware() -> Firmware:
    return Firmware()


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def found() -> list[LinuxHost]:
    return []


@pytest.fixture
def reach(
    memory: RememberedWindows, firmware: Firmware, wire: Wire, found: list[LinuxHost]
) -> Callable[..., TwoSystems]:
    def opened(target: LinuxHost, program: str) -> Agent:
        found.append(target)
        return Agent(wire, 60, system="linux")

    def make(**changed: Any) -> TwoSystems:
        given: dict[str, Any] = {"windows": Silent(), "target": HOST, "memory": memory, **changed}
        return TwoSystems(program="agent", boot="boot", open_linux=opened, query_boot=firmware, **given)

    return make


@pytest.fixture
def linux(reach: Callable[..., TwoSystems]) -> Agent:
    return reach().open()


def test_the_linux_that_answers_is_entered_with_the_key_that_windows_keeps_a_record_of(
    linux: Agent, found: list[LinuxHost], firmware: Firmware
) -> None:
    assert [(each.address, each.port, each.user, each.host_key) for each in found] == [
        ("192.0.2.7", 22, "winhost", KEY)
    ]
    assert firmware.asked == [{"heartbeat": True}], "its timer would go back to Windows"
    assert linux.system == "linux"


def test_of_windows_it_tells_what_that_said_last_and_of_the_firmware_what_is_so_now(linux: Agent) -> None:
    told = linux.read(["LinuxSystem"])
    assert told["FastStartup"] == SAID["FastStartup"]
    assert told["LinuxSystem"] == ()
    running = told["RunningSystem"]
    assert isinstance(running, tuple)
    assert running[0].state == {"system": "linux", "linux": "\\EFI\\ubuntu\\shimx64.efi", "installer": "0005"}
    assert runs_linux(facts(told))


@pytest.mark.parametrize(
    ("resource", "key", "state"),
    [
        ("FastStartup", {}, {"hibernation": False, "fast_startup": False}),
        ("UbuntuInstaller", {"name": "ubuntu"}, dict(INSTALLER)),
        ("UbuntuInstaller", {"name": "other"}, None),
        ("OwnVm", {"name": "a"}, None),
        ("LinuxBoot", {}, {"boot_id": "b"}),
    ],
)
def test_instances_are_told_by_whoever_has_them(
    linux: Agent, resource: str, key: dict[str, str], state: Mapping[str, Json] | None
) -> None:
    found = linux.get(resource, key)
    if resource == "UbuntuInstaller" and state is None:
        assert found is not None
        assert found["made"] is False
        return
    assert found == state
    assert linux.get_each([(resource, tuple(key.items()))]) == [found]


def test_what_windows_could_not_tell_is_not_there_to_be_had(linux: Agent) -> None:
    with pytest.raises(NotAvailable) as refused:
        linux.get("Disk", {"disk": "a"})
    assert refused.value.needs == "RunningSystem"


def test_windows_is_changed_by_windows_alone(linux: Agent, wire: Wire) -> None:
    with pytest.raises(NotAvailable):
        linux.set("FastStartup", {}, {"hibernation": True}, {"hibernation": False}, {})
    assert wire.asked == []


def test_back_to_windows_takes_a_restart_and_the_firmware_is_told_before(linux: Agent, firmware: Firmware) -> None:
    done = linux.set("RunningSystem", {}, {"system": "windows"}, {"system": "linux"}, {})
    assert (done.restart, done.after["system"], firmware.next) == (True, "linux", "0000")
    linux.restart()
    assert [each.get("to") for each in firmware.asked] == [None, "windows", None]


def test_who_finds_another_system_than_the_plan_saw_changes_nothing(linux: Agent, firmware: Firmware) -> None:
    with pytest.raises(Drifted):
        linux.set("RunningSystem", {}, {"system": "linux"}, {"system": "windows"}, {})
    assert linux.set("RunningSystem", {}, {"system": "linux"}, {"system": "linux"}, {}).restart is False
    assert [each.get("to") for each in firmware.asked] == [None]


def test_without_one_entry_of_windows_nothing_is_switched(linux: Agent, firmware: Firmware) -> None:
    firmware.entries = (UBUNTU_ENTRY,)
    with raises("NotSwitched"):
        linux.set("RunningSystem", {}, {"system": "windows"}, {"system": "linux"}, {})


def test_a_restart_of_the_linux_ends_in_that_linux(linux: Agent, firmware: Firmware, wire: Wire) -> None:
    linux.restart()
    assert firmware.next == "0006", "by its order the firmware would start Windows"
    assert wire.asked[-1]["verb"] == "restart"


def test_where_nothing_is_remembered_a_silent_windows_stays_silent(
    reach: Callable[..., TwoSystems], memory: RememberedWindows, found: list[LinuxHost]
) -> None:
    memory.keep(facts({"FastStartup": ()}))
    with pytest.raises(Unreachable):
        reach().open()
    assert (found, memory.answers()) == ([], {})


def test_where_something_else_answers_as_its_installer_it_is_windows_that_is_missed(
    reach: Callable[..., TwoSystems],
) -> None:
    def refused(target: LinuxHost, program: str) -> Agent:
        raise Unreachable("desk-01", "another host key")

    with pytest.raises(Unreachable, match="nobody answers"):
        replace(reach(), open_linux=refused).open()


def test_without_a_key_for_it_that_is_said(reach: Callable[..., TwoSystems]) -> None:
    with raises("NoLinuxKey"):
        reach(target=HOST.model_copy(update={"ssh": None})).open()


def test_a_windows_that_answers_is_remembered_as_read(
    reach: Callable[..., TwoSystems], memory: RememberedWindows
) -> None:
    agent = Agent(Wire(), 60)

    class Answering:
        host = "desk-01"

        def open(self) -> Agent:
            return agent

    assert reach(windows=Answering()).open() is agent
    agent.on_facts_read(facts({**SAID, "LinuxSystem": Unavailable("RunningSystem"), "FastStartup": ()}))
    assert memory.answers() == {**SAID, "FastStartup": ()}


def test_while_windows_runs_nothing_of_its_linux_can_be_told() -> None:
    assert host_answers(facts(SAID)).answer("LinuxSystem") == Unavailable("RunningSystem")
