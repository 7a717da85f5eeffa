"""What the log says of calls, retries, restarts and files: enough to find a fault, nothing of what was sent or came."""

import logging
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tests.connect.served import OVER_NETWORKS, VM, Served
from tests.connect.test_sending import CONTENT, NAME, STEP
from tests.errors import raises
from winhost.connect.wire_errors import Drifted, RemoteError
from winhost.lab.contract.agent_answers import InjectedFault
from winhost.lab.physics.windows_errors import CmdletError
from winhost.lab.wire.served_host import Phase, drop, refuse
from winhost.lab.wire.wsman import Action
from winhost.model.fleet import WireKind

CANARY = "a c4nary in the c0al mine"


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    """Those of winhost itself: what the simulated host logs in the same process is no part of it."""
    ours = [each for each in caplog.records if not each.name.startswith("winhost.lab")]
    return [each.getMessage() for each in ours if each.levelno >= level and each.name.startswith("winhost")]


def assert_lines(found: Sequence[str], *patterns: str) -> None:
    """Each line by its pattern, where `#` stands for a number."""
    rest = iter(found)
    for pattern in patterns:
        expression = re.escape(pattern).replace(r"\#", r"[\d.,]+")
        assert any(re.fullmatch(expression, line) for line in rest), (pattern, found)


@pytest.mark.parametrize("kind", OVER_NETWORKS)
def test_each_call_is_a_line_with_its_time_and_size(
    served: Served, caplog: pytest.LogCaptureFixture, kind: WireKind
) -> None:
    with closing(served.open(kind=kind)) as agent:
        agent.read(("Boot", "Vm"))
        agent.get("VmMmio", {"vm": VM})
        how = {"accept": ["vm-turn-off"], "within": 0}
        agent.set("VmPower", {"vm": VM}, {"state": "off"}, {"state": "running"}, how)
        with pytest.raises(Drifted):
            agent.set("VmPower", {"vm": VM}, {"state": "running"}, {"state": "running"}, how)
    size = "# bytes sent, # received"
    assert_lines(
        lines(caplog),
        f"{agent.host}: open {kind}, http, 127.0.0.1 port #, ntlm as LAB\\admin: # s",
        f"{agent.host}: get 2 resources: # s, {size}",
        f"{agent.host}: get VmMmio vm={VM}: # s, {size}",
        f"{agent.host}: set VmPower vm={VM} (state): # s, {size}",
        f"{agent.host}: set VmPower vm={VM} (state): # s, {size}, differs in state",
    )
    assert len(lines(caplog)) == 5
    debug = lines(caplog, logging.DEBUG)
    answered = f"{agent.host}: HTTP /wsman: # s, # bytes sent, status 200"
    assert_lines(debug, f"{agent.host}: connect to 127.0.0.1 port #: # s", answered)
    assert not [line for line in debug if "running" in line or "turn-off" in line]


def assert_lines_match(found: Sequence[str], pattern: str) -> None:
    assert [line for line in found if re.search(pattern, line)], found


def test_a_host_that_refuses_is_a_line_with_the_code_alone(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """PowerShell makes the words of a `throw` the code of its error."""
    for code in ("Winhost.Broken", CANARY):
        error = CmdletError("", "InvalidOperation", code, ("0x80004005",), CANARY)
        served.host.answers.faults.add(InjectedFault("VmActions", "get", error))
    with closing(served.open()) as agent:
        for _ in range(2):
            with pytest.raises(RemoteError, match="c4nary"):
                agent.get("VmActions", {"vm": VM})
    refused = [line.partition("received, ")[2] for line in lines(caplog) if "get VmActions" in line]
    assert refused == ["InvalidOperation Winhost.Broken 0x80004005", "InvalidOperation (a text) 0x80004005"]
    assert "c4nary" not in "".join(lines(caplog, logging.DEBUG))


def test_no_session_is_a_line_with_the_code_of_the_error(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.endpoint.faults.plan(refuse(401), Action.LOGON)
    with raises("AuthenticationFailed"):
        served.open()
    assert_lines_match(lines(caplog), r"open psrp, .*: AuthenticationFailed after [\d.]+ s")


def test_a_lost_answer_and_what_is_done_about_it_are_lines(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with closing(served.hands()) as hands:
        hands.facts()
        served.endpoint.faults.plan(drop, Action.RECEIVE, Phase.FINISHED)
        hands.facts()
    found = lines(caplog)
    assert_lines_match(found, r"get \d+ resources: SessionDropped after [\d.]+ s$")
    assert f"{hands.host}: SessionDropped, so reading again in another session" in found


def test_a_restart_is_told_with_each_look_and_both_boots(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    old = served.boot_id()
    with closing(served.hands()) as hands:
        hands.state("Boot", {})
        served.endpoint.faults.plan(drop, Action.COMMAND, times=3)
        new = hands.restart(old)
    found = lines(caplog)
    for pattern in (r": restart: ", r": no answer yet \(SessionDropped\): attempt \d+, again in [\d.]+ s$"):
        assert_lines_match(found, pattern)
    assert_lines(found, f"{hands.host}: restart from boot {old}: # s, now boot {new}")
    assert_lines_match(lines(caplog, logging.DEBUG), r": boot_id=\S+, logon_ready=True, servicing=")


@pytest.mark.costly
@pytest.mark.parametrize("kind", OVER_NETWORKS)
def test_a_file_is_a_line_and_its_pieces_are_lines_for_debugging(
    served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: WireKind
) -> None:
    (tmp_path / NAME).write_bytes(CONTENT)
    served.target = served.target.model_copy(
        update={"transport": served.target.transport.model_copy(update={"kind": kind})}
    )
    with closing(served.hands(folder=tmp_path)) as hands:
        hands.set(STEP, frozenset())
    (whole,) = (line for line in lines(caplog) if f"send {NAME}" in line)
    assert whole.endswith(f" s, {len(CONTENT):,} bytes")
    assert not any("from byte" in line for line in lines(caplog))
    assert_lines_match(lines(caplog, logging.DEBUG), r"send StagedFile .* from byte 1,048,576: [\d.]+ s, ")
