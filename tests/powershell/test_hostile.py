"""Hostile names go through the real scripts in a real PowerShell and come back as they are, or are refused by name."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.hostile.hosts import TAKEN, VM, called, names, unchanged, with_everything, with_taken
from tests.powershell.twins import NO_PIPELINE_STOPS, Call, Scripts, comparable, contract, scripts, verdict
from winhost.connect.agent import Agent
from winhost.engine.detect import read_facts
from winhost.lab.lab_host import INVOKE
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.wire.served_host import RemoteCommand
from winhost.model.facts import Facts

# PowerShell 7 makes dates of texts in a request that look like one; so no key or goal of ours looks so.
DATES = {TAKEN["date"], TAKEN["date-of-old-json"]}
pytestmark = pytest.mark.timeout(3600)  # a hundred rows in one test


class EngineWire:
    """Carries requests to the scripts, as a session would."""

    host = "gpu-03"

    def __init__(self, engine: Scripts) -> None:
        self._runspace = engine.runspace

    def invoke(self, request: str, within: float) -> str:
        command = RemoteCommand(INVOKE, is_script=False, parameters={"Json": request})
        (answer,) = self._runspace.invoke([command], NO_PIPELINE_STOPS)
        return str(answer)

    def close(self) -> None:
        """It is the engine's."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripts]:
    with scripts() as running:
        yield running


def facts_of(engine: Scripts, machine: Machine) -> Facts:
    engine.use(machine)
    return read_facts(Agent(EngineWire(engine), 60))


@with_taken
def test_names_come_back_as_they_are(engine: Scripts, value: str) -> None:
    assert names(facts_of(engine, called(value))) == unchanged(value)


@with_everything
def test_an_answer_leaves_as_ascii(engine: Scripts, value: str) -> None:
    """Also half a character, which the stand-ins cannot put into a name: their way here ends it."""
    units = ",".join(map(str, memoryview(value.encode("utf-16-le", "surrogatepass")).cast("H")))
    script = f"ConvertTo-WinhostAscii (ConvertTo-Json -InputObject @{{ name = -join [char[]]@({units}) }} -Compress)"
    (answer,) = engine.run(script)
    assert answer.isascii()
    assert json.loads(answer) == {"name": value}


@with_taken
def test_a_value_is_read_as_data_and_refused_by_name(engine: Scripts, value: str) -> None:
    """As resource, key, goal, expectation, property and consent: the scripts say of it what the lab says."""
    set_start: dict[str, Any] = {
        "resource": "VmActions",
        "verb": "set",
        "key": {"vm": VM},
        "desired": {"start": "nothing"},
    }
    calls: list[Call] = [
        {"resource": value, "verb": "get"},
        {"resource": "Vm", "verb": "get", "key": {"vm": value}},
        {"resource": "Vm", "verb": "get", "key": {"vm": VM + value}},
        {"resource": "PartitionableGpu", "verb": "get", "key": {"gpu": value}},
        {**set_start, "key": {"vm": value}},
        {**set_start, "desired": {"start": value}},
        {**set_start, "desired": {"start": "nothing" + value}},
        {**set_start, "expect": {"start": value}},
        {**set_start, "expect": {"start": "start" + value}},
        {**set_start, "desired": {value or "?": value}},
        {
            "resource": "AssignableDevice",
            "verb": "set",
            "key": {"location": value, "device": value},
            "desired": {"assignment": value},
        },
    ]
    if value in DATES:
        del calls[3]
    one, other = called(value), called(value)
    for call in calls:
        (ours,) = comparable([call], contract(one, call))
        (theirs,) = comparable([call], engine.answers(other, call))
        assert verdict(theirs) == verdict(ours)
        assert value in DATES or theirs == ours
    assert other.snapshot() == one.snapshot()
