"""Thousands of answers that no agent gave: nothing but our own errors comes of them, with the name of the host."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest.mock import Mock

import pytest

from tests.hostile.mutated import ERROR, Mutator
from winhost.cli.errors import as_winhost_error
from winhost.cli.look.detect import show_facts
from winhost.cli.output import error_text
from winhost.compat.evaluation import Requirements as Wanted
from winhost.compat.evaluation import evaluate
from winhost.connect.agent import Agent
from winhost.connect.guard import Guard
from winhost.connect.sent_parts import Scripts
from winhost.connect.windows_with_linux import WindowsWithLinux
from winhost.connect.winrs import WinrsWire
from winhost.connect.wire_errors import RemoteError, WireError
from winhost.core.answers import Json, MissingFact
from winhost.engine.detect import read_facts, unread_facts
from winhost.engine.planning import make_plan
from winhost.lab.contract.agent_answers import AgentAnswers
from winhost.lab.hostfile import expand, find
from winhost.lab.physics.lab_section import LabClock
from winhost.lab.physics.simulated_machine import Machine
from winhost.model.documents import write_document
from winhost.model.errors import WinhostError
from winhost.model.facts import Facts
from winhost.model.fleet import Host, Transport
from winhost.model.plan import PlanRequest
from winhost.model.shipped import shipped
from winhost.paths.playbook import parse_request, read_playbook
from winhost.resources.host import HostFacts
from winhost.resources.registry import LINUX, WINDOWS
from winhost.resources.shape import check_records
from winhost.resources.windows.parts import WindowsScripts

HOSTS = ("server2025-role-installed", "win11-wsl-served", "server2025-3gpu", "win11-pro-1gpu", "server2025-german")
STATE: Json = {"boot_id": "x", "logon_ready": True, "servicing": False}
PLAYBOOKS = {
    path: read_playbook(shipped("playbooks") / f"{path}.yaml").model_dump(by_alias=True, mode="json")
    for path in ("dda", "wsl2")
}
ONES: Mapping[str, Json] = {
    "get": {"ok": True, "state": STATE, "warnings": []},
    "set": {"ok": True, "before": STATE, "after": STATE, "restart": [{"system": "host"}], "warnings": ["w"]},
    "drift": {"ok": False, "drift": {"a": {"expected": 1, "found": 2}}, "before": STATE, "warnings": []},
    "failed": {"ok": False, "error": ERROR, "before": STATE, "after": None, "warnings": ["w"]},
    "unavailable": {"ok": False, "unavailable": "HyperVRole"},
    "send": {"ok": True, "received": 5, "sha256": "0" * 64, "warnings": []},
    "restart": {"ok": True, "restart": [{"system": "host"}], "warnings": []},
}
CALLS: tuple[Callable[[Agent], Any], ...] = (
    lambda agent: agent.get("Boot", {}),
    lambda agent: agent.set("Boot", {}, {"servicing": True}, {}, {}),
    lambda agent: agent.received("Boot", {}, {}),
    lambda agent: agent.send("Boot", {}, 0, b"12345"),
    lambda agent: agent.restart(),
)


@cache
def answers_of(name: str) -> Json:
    """What the agent says when it is asked for everything."""
    facts, section = expand(find(name))
    agent = AgentAnswers(Machine(facts, section, LabClock(0)))
    return json.loads(
        agent.invoke(json.dumps({"calls": [{"resource": resource, "verb": "get"} for resource in WINDOWS]}))
    )


@dataclass
class Saying:
    text: str
    host: str = "gpu-01"

    def invoke(self, request: str, within: float) -> str:
        return self.text

    def close(self) -> None:
        pass


@dataclass
class SayingWay:
    text: str
    host: str = "gpu-01"

    def open(self) -> Agent:
        return Agent(Saying(self.text), 60, check_records)


@dataclass
class Shell(WinrsWire):
    """The remote shell without a wire: what powershell.exe left behind."""

    said: tuple[bytes, bytes, int]
    host: str = "gpu-01"
    _in_use: bool = field(default=False)
    _scripts: Scripts = field(default_factory=WindowsScripts)
    _guard: Guard = field(default_factory=lambda: Guard("gpu-01", "192.0.2.1 port 5986"))
    _protocol: Any = field(default_factory=Mock)
    _shell: str = ""

    def _output(self, command: str) -> tuple[bytes, bytes, int]:
        return self.said


def attempt(work: Callable[[], Any]) -> Any:
    """What comes of it, or nothing where it ended as it may: with an error of ours that can be shown."""
    try:
        return work()
    except MissingFact as error:
        return shown(as_winhost_error(error))
    except WinhostError as error:
        return shown(error)


def shown(error: WinhostError) -> None:
    assert error.code != "Defect"
    assert all(line.isprintable() for line in error_text(error, "gpu-01").split("\n"))
    if isinstance(error, RemoteError | WireError):
        assert error.host == "gpu-01"


def everything(mutator: Mutator) -> bool:
    """A host is asked for all that it is, and all is done with that what a command would do, where it answers."""
    name = mutator.random.choice(HOSTS)
    text = mutator.text(mutator.document(answers_of(name)))
    facts = attempt(lambda: read_facts(Agent(Saying(text), 60, check_records)))
    if facts is not None:
        used(facts, mutator)
    return facts is not None


def used(facts: Facts, mutator: Mutator) -> None:
    list(unread_facts(facts))
    write_document(facts)
    show_facts(facts)
    typed = HostFacts(facts)
    path = mutator.random.choice([*PLAYBOOKS])
    if mutator.random.random() < 0.5:
        attempt(lambda: evaluate(facts, Wanted()))
    else:
        vm = mutator.random.choice((None, "llm-01"))
        attempt(lambda: make_plan(typed, parse_request(PlanRequest(path, PLAYBOOKS[path], vm))))


def one(mutator: Mutator) -> None:
    """One call, of any kind, that is answered with anything."""
    answer = mutator.document(mutator.random.choice([*ONES.values()]))
    text = mutator.text({"answers": [answer]})
    attempt(lambda: mutator.random.choice(CALLS)(Agent(Saying(text), 60, check_records)))


def shell(mutator: Mutator) -> None:
    """What the remote shell brings: bytes of whatever kind on both of its pipes."""
    text = mutator.text({"answers": [mutator.document(ONES["get"])]})
    code = mutator.random.choice((0, 0, 1, -1, 0xC000013A))
    wire = Shell((mutator.output(text), mutator.raw() + b"\n" + mutator.raw(), code))
    attempt(lambda: wire._call((), "[]"))


def both(mutator: Mutator) -> None:
    """A Windows that says where its Linux is, and a Linux that says anything."""
    windows = mutator.text(mutator.document(answers_of("win11-wsl-served")))
    said = mutator.text(mutator.document({"answers": [{"ok": True, "instances": [], "warnings": []}] * len(LINUX)}))
    target = Host(name="gpu-01", address="192.0.2.1", transport=Transport(port=5986))
    way = WindowsWithLinux(SayingWay(windows), target, tuple(LINUX), "", lambda *_: SayingWay(said).open())
    attempt(lambda: way.open().read(tuple(WINDOWS)))


KINDS: tuple[Callable[[Mutator], Any], ...] = (one, one, shell, both, everything, everything, everything, everything)


def run(seed: int) -> bool:
    """Whether there was something in it that could be used."""
    mutator = Mutator(seed)
    return bool(mutator.random.choice(KINDS)(mutator))


@pytest.mark.costly
def test_a_few_hundred_hostile_answers_end_in_errors_of_ours() -> None:
    assert sum(run(seed) for seed in range(300)) > 30


@pytest.mark.real
@pytest.mark.timeout(3600)
def test_twenty_thousand_hostile_answers_end_in_errors_of_ours() -> None:
    assert sum(run(seed) for seed in range(1_000, 21_000)) > 2_000
