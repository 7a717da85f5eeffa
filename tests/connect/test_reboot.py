"""A restart is over when another boot takes logons and Windows has finished its changes, and not before."""

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.connect.conftest import Serve
from tests.connect.served import QUICK, Served
from tests.errors import raises
from tests.processes import PATIENCE_S
from winhost.connect import reboot
from winhost.connect.agent import Agent
from winhost.connect.patience import Patience
from winhost.connect.wire_errors import (
    AuthenticationFailed,
    Distrust,
    RemoteError,
    SessionDropped,
    TimedOut,
    Unreachable,
    certificate_error,
)
from winhost.core.answers import RemoteFault
from winhost.lab.contract.agent_answers import InjectedFault
from winhost.lab.physics.windows_errors import cmdlet_error
from winhost.lab.wire.served_host import Phase, drop, refuse
from winhost.lab.wire.wsman import Action
from winhost.model.errors import Exit

OLD, NEW = "1", "2"


# ---- against the lab


@pytest.fixture
def pending(serve: Serve) -> Served:
    """A host on which a role was installed: after the restart, Windows finishes its changes."""
    served = serve("server2025-3gpu")
    served.host.machine.install_windows_feature("Hyper-V")
    return served


def texts(served: Served) -> list[str]:
    return [event.text for event in served.events]


def test_each_part_of_the_way_back_is_waited_for_and_told_once(pending: Served) -> None:
    lab = pending.host.machine.lab
    ends = {
        "still shutting down": lab.restart_delay,
        "no answer yet": lab.reboot_seconds,
        "up, logon not ready yet": lab.logon_seconds,
        "up, Windows is finishing its changes": lab.servicing_seconds,
    }
    pending.clock.hold(*ends.values())
    told: list[str] = []

    def tell(event: Any) -> None:
        told.append(event.text)
        pending.clock.release(ends[event.text])

    old = pending.boot_id()
    hands = pending.hands(tell)
    new = hands.restart(old)
    assert told == list(ends)
    assert new == pending.boot_id() != old
    assert hands.state("HyperVRole", {})["role"] == "installed"  # type: ignore[index]
    hands.close()


def test_a_host_that_restarted_already_is_not_restarted_again(served: Served) -> None:
    hands = served.hands()
    assert hands.restart("an earlier boot") == served.boot_id()
    hands.close()
    assert served.host.calls("restart") == []


def test_a_wire_that_goes_down_with_the_host_is_success(served: Served) -> None:
    old = served.boot_id()
    agent = served.open()
    served.endpoint.faults.plan(drop, Action.RECEIVE, Phase.FINISHED)
    reboot.request_restart(agent)
    agent.close()
    agent, new = reboot.wait_for_restart(served.connector(), old, QUICK)
    agent.close()
    assert new == served.boot_id() != old
    assert len(served.host.calls("restart")) == 1


def test_a_restart_that_was_never_heard_is_asked_for_again(served: Served) -> None:
    old = served.boot_id()
    hands = served.hands()
    hands.state("Boot", {})
    served.endpoint.faults.plan(drop, Action.COMMAND, times=3)
    assert hands.restart(old) == served.boot_id() != old
    hands.close()
    served.host.machine.wait_until_ready()
    assert served.host.machine.boot == 2


def test_a_host_that_cannot_even_be_asked_which_boot_it_is_is_waited_for(served: Served) -> None:
    """As when a killed run is resumed while its host is on the way down or up."""
    old = served.boot_id()
    for trouble, action in ((refuse(401), Action.LOGON), (drop, Action.CREATE)):
        served.endpoint.faults.plan(trouble, action)
    hands = served.hands()
    assert hands.restart(old) == served.boot_id() != old
    hands.close()


def test_a_restart_that_the_host_refuses_is_not_waited_for(served: Served) -> None:
    error = cmdlet_error("access-denied", "Restart-Computer", "en-US", {"host": "", "cmdlet": ""})
    served.host.answers.faults.add(InjectedFault("Boot", "restart", error))
    hands = served.hands()
    with pytest.raises(RemoteError):
        hands.restart(served.boot_id())
    hands.close()
    assert served.host.machine.boot == 1


def test_a_logon_that_is_refused_while_the_host_starts_is_waited_out(served: Served) -> None:
    old = served.boot_id()
    hands = served.hands()
    hands.state("Boot", {})
    served.clock.at[served.host.machine.lab.reboot_seconds] = lambda: served.endpoint.faults.plan(
        refuse(401), Action.LOGON, times=2
    )
    assert hands.restart(old) == served.boot_id() != old
    hands.close()
    assert "up, refuses the logon as yet" in texts(served)


def test_a_host_that_never_comes_back_is_said_so_with_numbers(served: Served) -> None:
    served.clock.hold(served.host.machine.lab.reboot_seconds)
    served.host.machine.restart_computer()
    assert served.clock.reached.wait(PATIENCE_S)
    with raises("NotBack") as caught:
        reboot.wait_for_restart(served.connector(), "1", Patience(deadline=0.1, first=0.01, longest=0.05))
    assert caught.value.host == "gpu-03"
    assert "was not back 0 s after its restart: gpu-03 at " in caught.value.what
    assert "cannot be reached" in caught.value.what
    assert caught.value.exit_code is Exit.UNREACHABLE


# ---- against hosts that answer by the book, in a time of the test's own


class Time:
    """Passes only when somebody sleeps, or when a host lets it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def passing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Time]:
    made = Time()
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: made.now)
        patch.setattr(time, "sleep", made.sleep)
        yield made


Look = dict[str, Any] | Exception


@dataclass
class Scripted:
    """A way to a host that answers each look in turn, the last one for ever; each look takes `takes` seconds."""

    looks: list[Look]
    passing: Time
    takes: float = 0
    host: str = "gpu-01"
    asked: list[str] = field(default_factory=list)
    withins: list[float] = field(default_factory=list)
    open_now: int = 0

    def open(self) -> Agent:
        look = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        self.passing.now += self.takes
        if isinstance(look, Exception) and not isinstance(look, RemoteError | SessionDropped):
            raise look
        self.open_now += 1
        return Agent(ScriptedWire(self, look), 600)


@dataclass
class ScriptedWire:
    connector: Scripted
    look: Look
    host: str = "gpu-01"

    def invoke(self, request: str, within: float) -> str:

        self.connector.withins.append(within)
        if isinstance(self.look, Exception):
            raise self.look
        (call,) = json.loads(request)["calls"]
        self.connector.asked.append(call["verb"])
        return json.dumps({"answers": [{"ok": True, "state": self.look, "restart": []}]})

    def close(self) -> None:
        self.connector.open_now -= 1


def boot(boot_id: Any = NEW, logon: Any = True, servicing: Any = False) -> dict[str, Any]:
    return {"boot_id": boot_id, "logon_ready": logon, "servicing": servicing}


UNKNOWN = {"unknown": {"category": "PermissionDenied"}}
FAULT = RemoteError("gpu-01", RemoteFault("NotSpecified"), "get Boot")

NOT_YET: dict[str, tuple[Look, str]] = {
    "no connection": (Unreachable("gpu-01", "refused"), "no answer yet"),
    "a lost session": (SessionDropped("gpu-01", "cut"), "no answer yet"),
    "no answer": (TimedOut("gpu-01", "silence"), "no answer yet"),
    "a refused logon": (AuthenticationFailed("gpu-01", "401"), "up, refuses the logon as yet"),
    "a failing agent": (FAULT, "up, cannot say yet how far it is"),
    "the old boot": (boot(OLD), "still shutting down"),
    "no logon": (boot(logon=False), "up, logon not ready yet"),
    "logon unknown": (boot(logon=UNKNOWN), "up, logon not ready yet"),
    "servicing": (boot(servicing=True), "up, Windows is finishing its changes"),
    "servicing unknown": (boot(servicing=UNKNOWN), "up, Windows is finishing its changes"),
    "an unknown boot is not another one": (boot(UNKNOWN), "up, cannot say yet which boot it is"),
    "no state at all": ({}, "up, cannot say yet which boot it is"),
}


@pytest.mark.parametrize(("look", "text"), NOT_YET.values(), ids=NOT_YET.keys())
def test_what_is_not_yet_back_is_looked_at_again(passing: Time, look: Look, text: str) -> None:
    told: list[str] = []
    connector = Scripted([look, look, boot()], passing)
    agent, new = reboot.wait_for_restart(connector, OLD, Patience(), told.append)
    assert (new, told, connector.open_now) == (NEW, [text, text], 1)
    agent.close()


@pytest.mark.parametrize("look", [look for look, _ in NOT_YET.values()], ids=NOT_YET.keys())
def test_the_deadline_holds_whatever_the_host_does(passing: Time, look: Look) -> None:
    connector = Scripted([look], passing, takes=5)
    with raises("NotBack") as caught:
        reboot.wait_for_restart(connector, OLD, Patience(deadline=100, first=1, longest=12))
    assert 1100 <= passing.now <= 1100 + connector.takes
    assert re.search(r"was not back 100 s after its restart: \S", caught.value.what)
    assert connector.open_now == 0


def test_a_single_look_may_not_outlive_the_deadline(passing: Time) -> None:
    connector = Scripted([boot(OLD), boot(OLD), boot()], passing, takes=1)
    agent, _ = reboot.wait_for_restart(connector, OLD, Patience(deadline=30, first=1, longest=12))
    agent.close()
    assert connector.asked == ["get", "restart", "get", "restart", "get"]
    assert max(connector.withins) <= 29
    assert agent.call_timeout == 600


def test_the_pauses_grow_to_the_longest_and_are_never_all_alike(passing: Time) -> None:
    with raises("NotBack"):
        reboot.wait_for_restart(Scripted([Unreachable("gpu-01", "refused")], passing), OLD, Patience(1000, 1, 12))
    *pauses, _ = passing.slept
    assert pauses[0] <= 2 < max(pauses) == 12
    assert len(set(pauses[:4])) == 4


def test_a_wrong_certificate_is_not_waited_out(passing: Time) -> None:
    connector = Scripted(
        [certificate_error("gpu-01", "self-signed", endpoint="", distrust=Distrust.UNTRUSTED), boot()], passing
    )
    with raises("CertificateRefused"):
        reboot.wait_for_restart(connector, OLD, Patience())
    assert passing.slept == []


NOT_BACK: dict[str, tuple[Look, str]] = {
    "gone": (
        Unreachable("gpu-01", "refused"),
        "was not back 1800 s after its restart: gpu-01 cannot be reached: refused",
    ),
    "busy": (boot(servicing=True), "was not back 1800 s after its restart: up, Windows is finishing its changes"),
}


@pytest.mark.parametrize(("look", "what"), NOT_BACK.values(), ids=NOT_BACK.keys())
def test_not_back_says_how_long_and_how_far(passing: Time, look: Look, what: str) -> None:
    with raises("NotBack") as caught:
        reboot.wait_for_restart(Scripted([look], passing, takes=1), OLD, Patience())
    assert caught.value.what == f"gpu-01 {what}"
    assert "may still be starting" in str(caught.value.meaning)
    assert "winhost resume" in str(caught.value.hint)


LOST: list[Callable[[], Exception]] = [lambda: SessionDropped("gpu-01", "cut"), lambda: TimedOut("gpu-01", "silence")]


@pytest.mark.parametrize("lost", LOST)
def test_asking_succeeds_when_the_answer_is_lost(passing: Time, lost: Callable[[], Exception]) -> None:
    connector = Scripted([boot()], passing)
    reboot.request_restart(Agent(ScriptedWire(connector, lost()), 600))
    assert len(connector.withins) == 1
