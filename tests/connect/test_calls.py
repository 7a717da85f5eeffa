"""Calls in an open session: what they carry there and back, and what is known when one is lost."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pypsrp.serializer import Serializer

from tests.connect.conftest import Serve
from tests.connect.served import LONG, OVER_NETWORKS, SCRIPT, VM, Served
from tests.errors import raises
from tests.processes import PATIENCE_S
from winhost.connect.agent import Agent
from winhost.connect.wire_errors import Drifted, NotAvailable, RemoteError, SessionDropped, TimedOut
from winhost.core.answers import Unavailable
from winhost.engine.detect import read_facts
from winhost.lab.contract.agent_answers import InjectedFault
from winhost.lab.physics.windows_errors import cmdlet_error
from winhost.lab.wire.served_host import Moment, Phase, drop, exceed_quota, refuse
from winhost.lab.wire.wsman import Action
from winhost.model.fleet import WireKind
from winhost.resources.registry import WINDOWS

NOBODY = "00000000-0000-0000-0000-000000000000"
START: dict[str, Any] = {"start": "nothing"}

only_psrp = pytest.mark.parametrize("served", [WireKind.PSRP], indirect=True)


@pytest.fixture(params=OVER_NETWORKS)
def served(serve: Serve, request: pytest.FixtureRequest) -> Served:
    """A host that is spoken with in each way that there is."""
    served = serve()
    served.target = served.target.model_copy(
        update={"transport": served.target.transport.model_copy(update={"kind": request.param})}
    )
    return served


@pytest.fixture
def agent(served: Served) -> Any:
    opened = served.open()
    yield opened
    opened.close()


def set_start(agent: Agent, expect: dict[str, Any] | None = None, vm: str = VM) -> Any:
    return agent.set("VmActions", {"vm": vm}, START, expect or {}, {"accept": [], "within": 0})


def start_action(served: Served) -> str:
    return served.host.machine.vms[VM].start_action


# ---- the session


def test_detect_is_one_script_and_one_call(served: Served) -> None:
    agent = served.open()
    facts = read_facts(agent)
    agent.close()
    (session,) = served.host.sessions
    assert session.ran == [
        SCRIPT,
        {"exclusive": False, "calls": [{"resource": resource, "verb": "get"} for resource in WINDOWS]},
    ]
    assert list(facts.resources) == list(WINDOWS)


@only_psrp
def test_no_part_of_the_agent_is_sent_twice_however_many_calls_follow(served: Served, agent: Agent) -> None:
    for _ in range(3):
        agent.get("Boot", {})
    set_start(agent)
    (session,) = served.host.sessions
    first, *none, more = session.sent
    assert (none, len(set(first) & set(more))) == ([(), ()], 0)
    assert "agent/core" in first
    assert "vm_actions/change" in more


@pytest.fixture
def deleted(served: Served) -> Any:
    counting = Counting(Action.DELETE)
    served.endpoint.faults.strike = counting(served.endpoint.faults.strike)  # type: ignore[method-assign, assignment]
    return counting


class Counting:
    def __init__(self, action: Action) -> None:
        self.moment = Moment(action, Phase.ARRIVED)
        self.count = 0

    def __call__(self, strike: Callable[[Moment], None]) -> Callable[[Moment], None]:
        def counted(moment: Moment) -> None:
            self.count += moment == self.moment
            strike(moment)

        return counted


def test_a_closed_session_is_gone_from_the_host(served: Served, deleted: Counting) -> None:
    served.open().close()
    assert deleted.count == 1


@only_psrp
def test_a_session_that_opened_half_way_is_gone_from_the_host(served: Served, deleted: Counting) -> None:
    served.endpoint.faults.plan(exceed_quota, Action.RECEIVE)
    with raises("NoSession"):
        served.open()
    assert deleted.count == 1


# ---- answers


@pytest.mark.costly
def test_an_answer_of_megabytes_arrives_whole(served: Served, agent: Agent) -> None:
    state = {"text": "Größe " * 500_000}
    served.host.says = lambda: [json.dumps({"answers": [{"ok": True, "state": state}]}, ensure_ascii=False)]
    assert agent.get("Boot", {}) == state


def test_64_bit_sizes_survive_the_way(served: Served, agent: Agent) -> None:
    size = (1 << 63) - 1
    served.host.says = lambda: [json.dumps({"answers": [{"ok": True, "state": {"size": size}}]})]
    assert agent.get("Memory", {}) == {"size": size}


def test_an_error_in_the_hosts_language_comes_through_as_data(serve: Serve) -> None:
    served = serve("server2025-german")
    error = cmdlet_error("access-denied", "Get-VM", "de-DE", {"host": "GPU-05", "cmdlet": "Get-VM"})
    served.host.answers.faults.add(InjectedFault("OperatingSystem", "get", error))
    agent = served.open()
    with pytest.raises(RemoteError) as caught:
        agent.get("OperatingSystem", {})
    agent.close()
    assert caught.value.fault == error.fault
    assert error.message != cmdlet_error("access-denied", "Get-VM", "en-US", {"host": "", "cmdlet": ""}).message
    assert all(part in caught.value.what for part in (error.category, error.code, *error.hresults))


def test_an_error_after_the_change_says_what_is_so_now(served: Served, agent: Agent) -> None:
    error = cmdlet_error("access-denied", "Set-VM", "en-US", {"host": "", "cmdlet": ""})
    served.host.answers.faults.add(InjectedFault("VmActions", "set", error, after_change=True))
    with pytest.raises(RemoteError) as caught:
        set_start(agent)
    assert (caught.value.before or {})["start"] == "start"
    assert (caught.value.after or {})["start"] == "nothing"


def test_what_is_not_there_is_not_what_cannot_be_looked_at(serve: Serve) -> None:
    installed, fresh = serve("server2025-role-installed").open(), serve("server2025-3gpu").open()
    assert installed.get("VmActions", {"vm": NOBODY}) is None
    with raises("NotFound") as not_found:
        set_start(installed, vm=NOBODY)
    with pytest.raises(NotAvailable) as not_available:
        fresh.get("VmActions", {"vm": VM})
    with pytest.raises(NotAvailable):
        set_start(fresh)
    assert isinstance(fresh.read(["Vm"])["Vm"], Unavailable)
    assert not isinstance(not_available.value, type(not_found.value))
    assert not_available.value.needs == "HyperVRole"
    assert "not possible until HyperVRole is available" in not_available.value.what
    installed.close()
    fresh.close()


def test_a_host_that_drifted_is_left_alone(served: Served, agent: Agent) -> None:
    with pytest.raises(Drifted) as caught:
        set_start(agent, expect={"start": "start-if-running"})
    assert caught.value.differences == {"start": ("start-if-running", "start")}
    assert start_action(served) == "start"


# ---- lost calls


@pytest.mark.costly
def test_a_call_that_takes_too_long_times_out_here_and_goes_on_there(served: Served, agent: Agent) -> None:
    served.clock.hold(LONG)
    served.host.answers.faults.add(InjectedFault("VmActions", "set", seconds=LONG))
    agent.call_timeout = 1
    with pytest.raises(TimedOut) as caught:
        set_start(agent)
    agent.close()
    assert served.clock.reached.wait(PATIENCE_S)
    assert "may still be running there" in str(caught.value.meaning)
    assert start_action(served) == "start"
    served.clock.release(LONG)
    other = served.open()
    assert other.get("VmActions", {"vm": VM}, settled=True) == {"stop": "save", "start": "nothing"}
    other.close()
    assert not served.host.sessions[0].stopped


WAITS = {
    WireKind.PSRP: "pypsrp.powershell.PowerShell.poll_invoke",
    WireKind.WINRS: "winrm.protocol.Protocol.get_command_output_raw",
}


def test_a_ctrl_c_in_the_middle_of_a_call_does_not_stop_it_on_the_host(
    served: Served, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        assert served.clock.reached.wait(PATIENCE_S)
        raise KeyboardInterrupt

    served.clock.hold(LONG)
    served.host.answers.faults.add(InjectedFault("VmActions", "set", seconds=LONG))
    monkeypatch.setattr(WAITS[served.target.transport.kind], interrupt)
    with pytest.raises(KeyboardInterrupt):
        set_start(agent)
    monkeypatch.undo()
    agent.close()
    served.clock.release(LONG)
    other = served.open()
    assert (other.get("VmActions", {"vm": VM}, settled=True) or {})["start"] == "nothing"
    other.close()
    assert not served.host.sessions[0].stopped


# The first call of a session is sent in several messages after that of the command: the agent comes with it.
LOST: dict[str, tuple[Any, Action, Phase, bool]] = {
    "cut before the call arrived": (drop, Action.COMMAND, Phase.ARRIVED, False),
    "cut when it had arrived": (drop, Action.RECEIVE, Phase.ARRIVED, True),
    "cut with the answer on its way": (drop, Action.RECEIVE, Phase.FINISHED, True),
    "a logon that the connection lost": (refuse(401), Action.COMMAND, Phase.ARRIVED, False),
    "a service that went away": (refuse(503), Action.COMMAND, Phase.ARRIVED, False),
}


@pytest.mark.costly
@pytest.mark.parametrize(("trouble", "action", "when", "arrived"), LOST.values(), ids=LOST.keys())
def test_a_call_whose_answer_is_lost_may_have_been_done(
    served: Served, agent: Agent, trouble: Any, action: Action, when: Phase, arrived: bool
) -> None:
    served.endpoint.faults.plan(trouble, action, when)
    with pytest.raises(SessionDropped) as caught:
        set_start(agent)
    agent.close()
    assert caught.value.what.startswith("the session with gpu-03 at 127.0.0.1 port ")
    assert caught.value.meaning == "The request may have been carried out."
    other = served.open()
    other.get("Boot", {}, settled=True)
    other.close()
    assert start_action(served) == ("nothing" if arrived else "start")
    assert len(served.host.calls("set")) == arrived


def test_a_call_that_somebody_stops_on_the_host_is_a_lost_one(served: Served, agent: Agent) -> None:
    served.clock.hold(LONG)
    served.host.answers.faults.add(InjectedFault("VmActions", "set", seconds=LONG))

    def stop_it() -> None:
        assert served.clock.reached.wait(PATIENCE_S)
        served.host.sessions[0].stops[-1].set()
        served.clock.release(LONG)

    somebody = threading.Thread(target=stop_it)
    somebody.start()
    with pytest.raises(SessionDropped, match=r"(stopped|ended) on the host"):
        set_start(agent)
    somebody.join(PATIENCE_S)


@only_psrp
def test_pypsrp_does_not_look_through_the_text_of_the_agent(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_through: list[str | None] = []
    serialize = Serializer._serialize_string

    def noted(serializer: Serializer, value: str | None) -> str | None:
        looked_through.append(value)
        return serialize(serializer, value)

    monkeypatch.setattr(Serializer, "_serialize_string", noted)
    agent = served.open()
    agent.boot()
    agent.close()
    assert looked_through
    assert [text for text in looked_through if text and "function " in text] == []
