"""What a session sends of the agent, over each wire: what a call needs, and over PSRP once."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.connect.conftest import Serve
from tests.connect.local_powershell import local_powershell
from tests.connect.served import VM, Served
from winhost.connect.agent import Agent
from winhost.connect.sent_parts import call_with_parts
from winhost.connect.this_computer import LocalWire
from winhost.connect.windows import WindowsConnector
from winhost.connect.wire_errors import SessionDropped
from winhost.engine.detect import read_facts
from winhost.lab.hostfile import find
from winhost.lab.running_lab import Lab
from winhost.lab.wire.served_host import drop
from winhost.lab.wire.wsman import Action
from winhost.model.fleet import Host, Transport, WireKind, load_fleet
from winhost.resources.registry import WINDOWS
from winhost.resources.windows.parts import WindowsScripts

REQUEST = json.dumps({"calls": [{"resource": "EfiBackup", "verb": "get"}]})
PART_NEEDED = '{"answers":[{"ok":false,"error":{"code":"Winhost.PartNeeded,Add-WinhostNative"}}]}'


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
        return Agent(LocalWire(Host(name="desk", address="localhost", transport=Transport()), WindowsScripts()), 300)
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

    def run(parts: Sequence[str], request: str) -> str:
        asked.append(tuple(parts))
        return PART_NEEDED

    assert json.loads(call_with_parts(WindowsScripts(), REQUEST, run)) == json.loads(PART_NEEDED)
    without, with_it = asked
    assert "helpers/firmware/compile" in set(with_it) - set(without)


def test_only_calls_that_lack_a_part_are_made_again_and_their_answers_take_their_places() -> None:
    resources = ["Boot", "OwnVm", "VmMmio", "WslDistro"]
    request = json.dumps({"exclusive": True, "calls": [{"resource": each, "verb": "get"} for each in resources]})
    asked: list[tuple[Sequence[str], Any]] = []

    def run(parts: Sequence[str], request: str) -> str:
        asked.append((parts, json.loads(request)))
        resources = [call["resource"] for call in asked[-1][1]["calls"]]
        lacking = {"OwnVm": "Read-WinhostOwnVms", "WslDistro": "Read-WinhostDistros"} if len(asked) == 1 else {}
        return json.dumps({"answers": [_instances(each, lacking.get(each)) for each in resources]})

    answer = json.loads(call_with_parts(WindowsScripts(), request, run))
    assert answer == {"answers": [_instances(each, None) for each in resources]}
    (first, _), (second, again) = asked
    assert again == {"exclusive": True, "calls": [{"resource": each, "verb": "get"} for each in ("OwnVm", "WslDistro")]}
    assert {"own_vm/found", "wsl_distro/found"} <= set(second) - set(first)
    assert "helpers/firmware/compile" not in second


def _instances(resource: str, missing: str | None) -> dict[str, Any]:
    """An answer, in which one state is unknown where a function is missing."""
    state: Any = {"unknown": {"code": f"Winhost.PartNeeded,{missing}"}} if missing else resource
    return {"ok": True, "instances": [{"key": {}, "state": {"there": state}}]}


@pytest.mark.parametrize(
    "second",
    ["no JSON", "[]", '{"answers": []}', '{"answers": 3}', "[" * 100_000, PART_NEEDED, '{"answers": [{}, {}]}'],
)
def test_whatever_a_host_answers_the_second_time_is_asked_no_third_time(second: str) -> None:
    answers = iter([PART_NEEDED, second])
    assert json_or_text(
        call_with_parts(WindowsScripts(), REQUEST, lambda parts, request: next(answers))
    ) == json_or_text(second)


def json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


@pytest.mark.parametrize("name", ["Format-Volume", "Get-WinhostBoot", "Set-WinhostBoot", "x"])
def test_a_host_gets_no_more_than_reads_may_need_whatever_it_says_is_missing(name: str) -> None:
    asked: list[Sequence[str]] = []

    def run(parts: Sequence[str], request: str) -> str:
        asked.append(parts)
        return PART_NEEDED.replace("Add-WinhostNative", name)

    call_with_parts(WindowsScripts(), json.dumps({"calls": [{"resource": "Boot", "verb": "get"}]}), run)
    assert {part for parts in asked for part in parts if part.endswith(("/change", "/compile"))} == set()


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

                call_with_parts(WindowsScripts(), json.dumps({"calls": calls}), run)
                if len(asked) != 1:
                    again.append((resource, verb, len(calls)))
    assert again == []


def test_a_detect_and_a_change_send_as_little_as_they_are_allowed_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the bodies of all requests, from opening the session to closing it."""
    sizes: list[int] = []
    send = requests.Session.send

    def counted(session: requests.Session, request: requests.PreparedRequest, **how: Any) -> requests.Response:
        sizes.append(len(request.body or b""))
        return send(session, request, **how)

    monkeypatch.setattr(requests.Session, "send", counted)
    with Lab([find("server2025-role-installed")], tmp_path) as lab:
        (host,) = load_fleet(lab.fleet_file).select(["*"])
        with closing(WindowsConnector(host, WindowsScripts()).open()) as agent:
            read_facts(agent)
            before = sum(sizes)
            assert before < 120_000
            agent.set("VmActions", {"vm": VM}, {"start": "nothing"}, {}, {"accept": [], "within": 0})
            first = sum(sizes) - before
            agent.set("VmActions", {"vm": VM}, {"start": "start"}, {}, {"accept": [], "within": 0})
    assert first < 28_000
    assert sum(sizes) - before - first < 9_000
