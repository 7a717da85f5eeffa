"""The scripts that a host runs answer what the lab says: in a real PowerShell, against the same simulated host."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.powershell.twins import Scripts, comparable, contract, hosts, machine, of, scripts, verdict
from winhost.lab.clock import LabClock
from winhost.lab.machine import Machine
from winhost.model.facts import Record
from winhost.resources.windows import NOUNS, STATES

DATA = yaml.safe_load((Path(__file__).parents[1] / "data" / "powershell" / "differential.yaml").read_text("utf-8"))
KEYS, CASES = DATA["keys"], DATA["cases"]
WORLDS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "in German": {"language": "de-DE"},
    "for a guest": {"administrator": False},
}
PREPARED = {
    "VmPower": {"state": "off"},
    "VmActions": {"stop": "turn-off"},
    "VmCheckpoints": {"kind": "disabled", "automatic": False},
    "VmMemory": {"dynamic": False},
}
SLOW = LabClock(scale=10.0)  # a restart that nobody lives to see
HOSTILE = (
    "it's", "‘’‚‛", '"$(Stop-Computer)"', "`n`0", "a\nb\r\nc", "\u0000", "\u202egnorw\u202c", "x" * 255, "gpu[1]*?",
    "CON", "..\\..\\x", "\\\\server\\share", "; & | {0} %PATH% $env:PATH", "2024-01-31T12:00:00Z", "=1+1", "01", "true",
    "null", "", " ", "\U0001f4a9", "<#", "@'\n'@", "--%", "\ufeffbom",
)  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripts]:
    with scripts() as running:
        yield running


def same(engine: Scripts, one: Machine, other: Machine, *calls: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers, which are the same from both."""
    ours = comparable(calls, contract(one, *calls))
    theirs = comparable(calls, engine.answers(other, *calls))
    assert theirs == ours
    return ours


# ---- every noun, on every host


def everything(host: Machine) -> list[dict[str, Any]]:
    return [{"noun": state.noun.name, "verb": "get"} for state in STATES]


def one_by_one(host: Machine) -> Iterator[dict[str, Any]]:
    """Each instance by its key, however it is written; then one that is not there, and half a key."""
    for name, noun in NOUNS.items():
        for record in host.there(name)[:3]:
            yield {"noun": name, "verb": "get", "key": dict(record.key)}
            yield {"noun": name, "verb": "get", "key": {part: text.swapcase() for part, text in record.key.items()}}
            yield {"noun": name, "verb": "get", "key": dict(list(record.key.items())[1:])}
        yield {"noun": name, "verb": "get", "key": dict.fromkeys(noun.key, "not there")}


@pytest.mark.parametrize("name", hosts())
@pytest.mark.parametrize("reads", [everything, one_by_one])
def test_every_noun_reads_the_same_on_every_host(engine: Scripts, name: str, reads: Any) -> None:
    host = machine(name)
    same(engine, host, host, *reads(host))


@pytest.mark.parametrize("world", ["in German", "for a guest"])
@pytest.mark.parametrize("name", ["server2025-3gpu", "server2025-role-installed", "win11-pro-1gpu"])
def test_every_noun_reads_the_same_in_other_words(engine: Scripts, name: str, world: str) -> None:
    host = machine(name, **WORLDS[world])
    same(engine, host, host, *everything(host))


def test_names_come_back_as_they_are(engine: Scripts) -> None:
    facts, section = hosts()["server2025-role-installed"]
    vm = facts.nouns["Vm"][0]  # type: ignore[index]
    named = tuple(
        Record({**vm.state, "name": name}, {"vm": f"00000000-0000-4000-8000-{number:012x}"})
        for number, name in enumerate(HOSTILE)
    )
    host = of(replace(facts, nouns={**facts.nouns, "Vm": named}), section)
    (answer,) = same(engine, host, host, {"noun": "Vm", "verb": "get"})
    assert [each["state"]["name"] for each in answer["instances"]] == list(HOSTILE)


# ---- every case


def filled(steps: list[Any]) -> list[list[dict[str, Any]]]:
    """The calls of a case; a step is one call, or the four that prepare a VM."""
    found = []
    for step in steps:
        if isinstance(step, dict):
            key = KEYS[step["take"]]
            found.append([{"noun": n, "verb": "set", "key": key, "want": want} for n, want in PREPARED.items()])
            continue
        verb, noun, key, want, more = [*step, *[None] * (5 - len(step))]
        call = {"verb": verb, "noun": noun, "key": key and KEYS[key] if key != "NONE" else {}, "want": want}
        found.append([{**{name: value for name, value in call.items() if value is not None}, **(more or {})}])
    return found


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", CASES)
def test_a_case_ends_the_same(engine: Scripts, name: str, world: str) -> None:
    case = deepcopy(CASES[name])
    steps, say = filled(case.pop("do")), case.pop("say")
    lab = {**case.pop("lab", {}), **WORLDS[world]}
    one, other = (machine(case["host"], **lab) for _ in range(2))
    if case.pop("slow", False):
        one.clock = other.clock = SLOW
    batch = case.pop("batch", False)
    if batch:
        steps = [[call for step in steps for call in step]]
    assert set(case) == {"host"}, f"unknown keys {set(case) - {'host'}}"
    said = [[verdict(answer) for answer in same(engine, one, other, *step)] for step in steps]
    assert other.snapshot() == one.snapshot()
    assert other.settled_state() == one.settled_state()
    if world == "as it is":
        assert (said[0] if batch else [next((w for w in step if w != "ok"), "ok") for step in said]) == say
