"""What a session sends of the agent, over each wire: what a call needs, and over PSRP once."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.connect.conftest import Serve
from tests.connect.local_powershell import local_powershell
from tests.connect.served import VM, Served
from winhost.connect.agent import Agent
from winhost.connect.sent_parts import ask
from winhost.connect.this_computer import LocalWire
from winhost.connect.wire_errors import SessionDropped
from winhost.lab.wire.wire_troubles import drop
from winhost.lab.wire.wsman import Action
from winhost.model.fleet import Host, Transport, WireKind
from winhost.resources.registry import WINDOWS
from winhost.resources.windows.parts import WindowsScripts

REQUEST = json.dumps({"calls": [{"resource": "EfiBackup", "verb": "get"}]})
PART_NEEDED = '{"answers":[{"ok":false,"error":{"code":"Winhost.PartNeeded"}}]}'


@pytest.fixture(params=[WireKind.PSRP, WireKind.WINRS, WireKind.LOCAL])
def over(
    serve: Serve, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Served, WireKind]]:
    served = serve()
    if request.param is WireKind.LOCAL:
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        with local_powershell(tmp_path, served.host):
            yield served, request.param
    else:
        yield served, request.param


def opened(served: Served, kind: WireKind) -> Agent:
    if kind is WireKind.LOCAL:
        return Agent(LocalWire(Host("desk", "localhost", Transport(0)), WindowsScripts()), 300)
    return served.open(kind=kind)


def texts(served: Served) -> list[set[str]]:
    return [set(parts) for session in served.host.sessions for parts in session.sent]


def test_a_session_gets_the_parts_of_a_later_call_when_it_makes_it(over: tuple[Served, WireKind]) -> None:
    served, kind = over
    agent = opened(served, kind)
    agent.boot()
    agent.get("VmMmio", {"vm": VM})
    agent.set("VmActions", {"vm": VM}, {"start": "nothing"}, {}, {"accept": [], "within": 0})
    agent.get("VmMmio", {"vm": VM})
    agent.close()
    boot, mmio, actions, again = texts(served)
    assert {"agent/core", "boot/read"} <= boot
    assert boot.isdisjoint({"boot/change", "vm_mmio/read"})
    assert {"vm_mmio/read"} <= mmio
    assert {"vm_actions/change"} <= actions
    if kind is WireKind.PSRP:  # a runspace keeps what it has
        assert not boot & mmio
        assert not actions & (boot | mmio)
        assert again == set()
    else:
        assert boot - {"boot/read", "helpers/registry/read"} <= mmio == again


def test_a_new_session_after_a_lost_one_is_sent_everything_that_it_needs_again(served: Served) -> None:
    agent = served.open()
    agent.boot()
    served.endpoint.faults.plan(drop, Action.COMMAND)
    with pytest.raises(SessionDropped):
        agent.get("VmMmio", {"vm": VM})
    agent.close()
    anew = served.open()
    anew.get("VmMmio", {"vm": VM})
    anew.close()
    assert "agent/core" in texts(served)[-1]


def test_a_read_that_turns_out_to_need_csharp_is_sent_it_once() -> None:
    asked: list[tuple[str, ...]] = []

    def run(parts: Any, request: str) -> str:
        asked.append(tuple(parts))
        return PART_NEEDED

    assert ask(WindowsScripts(), REQUEST, run) == PART_NEEDED
    without, with_it = asked
    assert set(with_it) - set(without) == {"helpers/firmware/compile"}


def test_a_call_that_changes_is_never_made_twice() -> None:
    reads = json.loads(REQUEST)["calls"]
    again = []
    for resource in WINDOWS:
        for verb in ("set", "send", "restart"):
            for calls in ([{"resource": resource, "verb": verb}], [*reads, {"resource": resource, "verb": verb}]):
                asked: list[Sequence[str]] = []

                def run(parts: Sequence[str], request: str, asked: list[Sequence[str]] = asked) -> str:
                    asked.append(parts)
                    return PART_NEEDED

                ask(WindowsScripts(), json.dumps({"calls": calls}), run)
                if len(asked) != 1:
                    again.append((resource, verb, len(calls)))
    assert again == []
