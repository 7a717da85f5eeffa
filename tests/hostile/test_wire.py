"""The text that is sent to a host is the same for every name; only the JSON in it differs."""

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from tests.errors import raises
from tests.hostile.hosts import (
    EVERYTHING,
    HOST,
    TAKEN,
    VM,
    called,
    names,
    unchanged,
    with_everything,
    with_refused,
    with_taken,
)
from winhost.connect.agent import Agent
from winhost.connect.windows import WindowsConnector
from winhost.connect.wire_errors import RemoteError
from winhost.core.answers import Unknown
from winhost.engine.detect import read_facts
from winhost.lab.hostfile import find
from winhost.lab.lab_host import LabHost, LabRunspace
from winhost.lab.running_lab import Lab
from winhost.lab.wire.served_host import RemoteCommand
from winhost.model.fleet import load_fleet
from winhost.resources.registry import WINDOWS
from winhost.resources.windows.parts import WindowsScripts

DETECT = [{"resource": resource, "verb": "get"} for resource in WINDOWS]
CALL = ("Invoke-Winhost", False, ("Json",), 0)

Heard = tuple[str, bool, tuple[str, ...], int]


def sent(parts: Sequence[str]) -> Heard:
    """A call that takes along parts of the agent."""
    return WindowsScripts().text(parts), True, (), 1


class OverhearingRunspace(LabRunspace):
    def __init__(self, host: "OverhearingHost") -> None:
        super().__init__(host.answers)
        self._host = host

    def invoke(self, commands: Sequence[RemoteCommand], stop: threading.Event) -> Iterable[object]:
        (command,) = commands
        parameters, arguments = command.parameters, command.arguments
        self._host.heard.append((command.text, command.is_script, tuple(parameters), len(arguments)))
        self._host.given += (*arguments, *parameters.values())
        return super().invoke(commands, stop)


class OverhearingHost(LabHost):
    """Keeps of every command its text, whether that is a script, and what comes with it; and the values beside them."""

    def __init__(self, machine: Any) -> None:
        super().__init__(machine)
        self.heard: list[Heard] = []
        self.given: list[object] = []

    def open_runspace(self, user: str) -> OverhearingRunspace:
        return OverhearingRunspace(self)

    def become(self, value: str) -> None:
        self.answers.machine = called(value)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OverhearingHost, WindowsConnector]]:
    lab = Lab([find("server2025-role-installed")], tmp_path_factory.mktemp("lab"), scale=0)
    overhearing = lab.hosts[HOST] = OverhearingHost(lab.hosts[HOST].machine)
    with lab:
        (target,) = load_fleet(lab.fleet_file).hosts
        yield overhearing, WindowsConnector(target, WindowsScripts())


@pytest.fixture
def overhearing(host: tuple[OverhearingHost, WindowsConnector]) -> OverhearingHost:
    host[0].heard.clear()
    host[0].given.clear()
    return host[0]


@pytest.fixture(scope="module")
def agent(host: tuple[OverhearingHost, WindowsConnector]) -> Iterator[Agent]:
    opened = host[1].open()
    read_facts(opened)
    with raises("NotFound"):
        opened.set("VmActions", {"vm": "none"}, {"start": "nothing"}, {}, {})
    yield opened
    opened.close()


def test_a_call_takes_along_constant_parts_of_the_agent_and_its_request_beside_them(
    overhearing: OverhearingHost, host: tuple[OverhearingHost, WindowsConnector]
) -> None:
    for value in ("tame", TAKEN["quotes-of-all-kinds"], TAKEN["double-here-string-end"]):
        overhearing.become(value)
        agent = host[1].open()
        assert names(read_facts(agent)) == unchanged(value)
        with raises("NotFound"):
            agent.set("VmActions", {"vm": value}, {"start": "nothing"}, {}, {})
        agent.close()
    read = WindowsScripts().needed(json.dumps({"calls": DETECT}))
    change = WindowsScripts().needed(json.dumps({"calls": [{"resource": "VmActions", "verb": "set"}]}))
    assert overhearing.heard == [sent(read), sent([part for part in change if part not in read])] * 3


@pytest.mark.costly
@with_taken
def test_names_arrive_as_they_are(overhearing: OverhearingHost, agent: Agent, value: str) -> None:
    overhearing.become(value)
    assert names(read_facts(agent)) == unchanged(value)


@with_refused
def test_half_a_character_arrives_and_is_refused(overhearing: OverhearingHost, agent: Agent, value: str) -> None:
    overhearing.become(value)
    facts = read_facts(agent)
    for resource in ("Vm", "VmSwitch", "PartitionableGpu", "Session"):
        assert isinstance(facts.resources[resource], Unknown)


@pytest.mark.costly
@with_everything
def test_a_value_goes_out_as_data_and_is_refused_by_name(
    overhearing: OverhearingHost, agent: Agent, value: str
) -> None:
    """The host reads each value in the JSON: resource, key, request, expectation, property and consent."""
    overhearing.heard.clear()
    overhearing.given.clear()
    with pytest.raises(RemoteError, match="UnknownNoun"):
        agent.get(value, {})
    with raises("NotFound"):
        agent.set("VmActions", {"vm": value}, {"start": "nothing"}, {}, {})
    with pytest.raises(RemoteError, match=r"BadRequest|Winhost\.Bad") as refused:
        agent.set("VmActions", {"vm": VM}, {"start": value}, {}, {"accept": [value]})
    assert refused.value.what.isprintable()
    with pytest.raises(RemoteError, match="BadRequest"):
        agent.set("VmActions", {"vm": VM}, {value: value}, {value: value}, {})
    assert overhearing.heard == [CALL] * 4
    calls = [json.loads(str(given))["calls"] for given in overhearing.given]
    assert [call["resource"] for (call,) in calls] == [value, "VmActions", "VmActions", "VmActions"]
    assert calls[1][0]["key"] == {"vm": value}
    assert calls[2][0]["desired"] == {"start": value}
    assert calls[3][0]["desired"] == calls[3][0]["expect"] == {value: value}


@pytest.mark.costly
def test_what_goes_out_is_ascii(overhearing: OverhearingHost, agent: Agent) -> None:
    for value in EVERYTHING.values():
        assert agent.get("Vm", {"vm": value}) is None
    assert all(str(given).isascii() for given in overhearing.given)
    assert len(overhearing.given) == len(EVERYTHING)
