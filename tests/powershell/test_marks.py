"""The marks that a real PowerShell keeps on a host are those of the lab, byte for byte, and bundles judge by them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.powershell.twins import Scripts, comparable, contract, machine, scripts, verdict
from winhost.connect.agent import MARKS
from winhost.lab.contract.agent_answers import MARKS_FILE
from winhost.lab.physics.simulated_machine import Machine

HOST = "server2025-role-installed"
LONGEST = 262144  # characters of all marks


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripts]:
    with scripts() as running:
        yield running


def test_marks_are_kept_and_told_the_same(engine: Scripts) -> None:
    one, other = machine(HOST), machine(HOST)
    vm = next(iter(one.vms))

    def ask(resource: str, desired: Any = None, expect: Any = None, mark: str = "", **key: str) -> str:
        call: dict[str, Any] = {"resource": resource, "verb": "get" if desired is None else "set", "key": key}
        if desired is not None:
            call |= {"desired": desired, "expect": expect or {}, "how": {"mark": mark} if mark else {}}
        ours, theirs = (comparable([call], answers([call])) for answers in (of(one), of(other)))
        assert theirs == ours
        assert one.files.read(MARKS_FILE) == other.files.read(MARKS_FILE)
        return verdict(ours[0])

    def of(host: Machine) -> Any:
        return lambda calls: contract(host, *calls) if host is one else engine.answers(host, *calls)

    def kept() -> list[str]:
        return (one.files.read(MARKS_FILE) or b"").decode().split("\n")[:-1]

    found = one.vms[vm].stop_action
    assert ask(MARKS) == "ok"
    assert ask("VmActions", {"stop": "turn-off"}, {"stop": "no"}, "drifted", vm=vm) == "drift"
    assert ask("VmActions", {"stop": found}, {"stop": found}, "nothing to do", vm=vm) == "ok"
    assert kept() == []
    assert ask("VmActions", {"stop": "turn-off"}, {"stop": found}, "refused: it runs", vm=vm) == "InvalidState"
    assert kept() == ["refused: it runs"]  # nobody knows how far a change came that failed
    assert ask(MARKS, {"marks": []}, {"marks": kept()}) == "ok"
    for host in (one, other):
        host.stop_vm(vm, timeout=300)
    assert ask("VmActions", {"stop": "turn-off"}, {"stop": found}, '{"a":"é"}', vm=vm) == "ok"
    assert ask("VmActions", {"stop": "shut-down"}, {"stop": "turn-off"}, "second", vm=vm) == "ok"
    assert kept() == ['{"a":"é"}', "second"]
    assert ask(MARKS) == "ok"
    assert ask(MARKS, {"marks": ["second"]}, {"marks": ["other"]}) == "drift"
    assert ask(MARKS, {"marks": ["second"]}, {"marks": kept()}) == "ok"
    assert ask(MARKS, {"marks": []}, {"marks": ["second"]}) == "ok"
    assert one.files.read(MARKS_FILE) is None


def test_the_oldest_marks_go_when_there_are_too_many(engine: Scripts) -> None:
    host = machine(HOST)
    lines = [f"{number} {'x' * 60_000}" for number in range(6)]
    call = {"resource": MARKS, "verb": "set", "key": {}, "desired": {"marks": lines}, "expect": {"marks": []}}
    (answer,) = engine.answers(host, call)
    kept = answer["after"]["marks"]
    assert kept == lines[-len(kept) :]
    assert LONGEST - 60_010 < len("\n".join(kept)) <= LONGEST


def test_marks_are_unknown_to_whoever_may_not_read_them(engine: Scripts) -> None:
    one, other = (machine(HOST, administrator=False) for _ in range(2))
    call = {"resource": MARKS, "verb": "get", "key": {}}
    for (answer,) in (contract(one, call), engine.answers(other, call)):
        assert answer["state"] == {"marks": []}
    for host in (one, other):
        host.files.write(MARKS_FILE, b'{"run":"another.run"}\n')
    for (answer,) in (contract(one, call), engine.answers(other, call)):
        assert verdict(answer) == "Winhost.NotAdministrator"


def test_a_folder_that_somebody_else_made_is_neither_read_nor_written(engine: Scripts) -> None:
    host = machine(HOST)
    host.files.write(MARKS_FILE, b'{"run":"made.up"}\n')
    host.files.foreign_folders.add("c:\\programdata\\winhost")
    vm = next(iter(host.vms))
    (told,) = engine.answers(host, {"resource": MARKS, "verb": "get", "key": {}})
    assert told["state"]["marks"] == []
    change = {"resource": "VmActions", "verb": "set", "key": {"vm": vm}, "desired": {"stop": "turn-off"}}
    before = host.vms[vm].stop_action
    (answer,) = engine.answers(host, {**change, "expect": {"stop": before}, "how": {"mark": "mine"}})
    assert verdict(answer) == "Winhost.NotOurs"
    assert answer["after"]["stop"] == host.vms[vm].stop_action == before
    assert json.loads((host.files.read(MARKS_FILE) or b"").decode()) == {"run": "made.up"}
