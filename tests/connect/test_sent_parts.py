"""What a session sends of the agent, over each wire: what a call needs, once, and no more bytes than it may cost."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from requests.adapters import HTTPAdapter

from tests.cli.conftest import Line
from tests.connect.conftest import Serve
from tests.connect.local_powershell import local_powershell
from tests.connect.served import VM, Served
from winhost.connect.agent import Agent
from winhost.connect.sent_parts import ask
from winhost.connect.this_computer import LocalWire
from winhost.connect.wire_errors import SessionDropped
from winhost.engine.detect import read_facts
from winhost.lab.hostfile import find
from winhost.lab.running_lab import Lab
from winhost.lab.wire.wire_troubles import Moment, When, drop
from winhost.lab.wire.wsman import Action
from winhost.model.fleet import Host, Transport, WireKind
from winhost.resources.registry import WINDOWS
from winhost.resources.windows.parts import WindowsScripts

KB = 1000
REQUEST = json.dumps({"calls": [{"resource": "EfiBackup", "verb": "get"}]})
NOT_SENT = '{"answers":[{"ok":false,"error":{"code":"Winhost.NotSent"}}]}'


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes in the body of each HTTP request of this process."""
    bodies: list[int] = []
    send = HTTPAdapter.send

    def counted(adapter: HTTPAdapter, request: Any, *args: Any, **kwargs: Any) -> Any:
        bodies.append(len(request.body or b""))
        return send(adapter, request, *args, **kwargs)

    monkeypatch.setattr(HTTPAdapter, "send", counted)
    return bodies


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
    served.endpoint.disturb(drop(Moment(Action.RECEIVE, When.BEFORE)))
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
        return NOT_SENT

    assert ask(WindowsScripts(), REQUEST, run) == NOT_SENT
    without, with_it = asked
    assert set(with_it) - set(without) == {"helpers/firmware/compile"}


def test_a_call_that_changes_is_never_made_twice() -> None:
    calls = json.loads(REQUEST)["calls"]
    calls += [{"resource": "VmMmio", "verb": "set"}]
    asked = []
    ask(WindowsScripts(), json.dumps({"calls": calls}), lambda parts, request: asked.append(parts) or NOT_SENT)  # type: ignore[func-returns-value]
    assert len(asked) == 1


@pytest.mark.parametrize(("kind", "most"), [(WireKind.PSRP, 300 * KB), (WireKind.WINRS, 320 * KB)])
def test_what_reading_a_host_costs(served: Served, sent: list[int], kind: WireKind, most: int) -> None:
    agent = served.open(kind=kind)
    read_facts(agent)
    agent.close()
    print(kind, sum(sent), sent)
    assert sum(sent) <= most
