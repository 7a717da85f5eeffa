"""Hands on a host: a lost answer is settled by reading, never by asking again blindly."""

import pytest

from tests.connect.served import LONG, SCRIPT, VM, HastyOnce, Served
from tests.errors import raises
from tests.processes import PATIENCE_S
from winhost.connect.wire_errors import Drifted, SessionDropped, TimedOut
from winhost.core.steps import Step
from winhost.engine.progress import ProgressEvent
from winhost.lab.contract.agent_answers import InjectedFault
from winhost.lab.wire.served_host import Phase, drop, exceed_quota
from winhost.lab.wire.wsman import Action

NOBODY = "00000000-0000-0000-0000-000000000000"


def step(before: str = "start", vm: str = VM) -> Step:
    return Step(
        id="1",
        resource="VmActions",
        key={"vm": vm},
        role="desired",
        before={"start": before},
        desired={"start": "nothing"},
        title="llm-01 does not start by itself",
        why="",
    )


def start_action(served: Served) -> str:
    return served.host.machine.vms[VM].start_action


def kinds(served: Served) -> list[str]:
    return [event.kind for event in served.events]


LOSSES: dict[str, tuple[Action, Phase]] = {
    "before the work": (Action.COMMAND, Phase.ARRIVED),
    "after the work was asked for": (Action.COMMAND, Phase.WORKED),
    "after the work": (Action.RECEIVE, Phase.FINISHED),
}


@pytest.mark.parametrize(("action", "when"), LOSSES.values(), ids=LOSSES.keys())
def test_a_set_whose_answer_is_lost_is_done_exactly_once(served: Served, action: Action, when: Phase) -> None:
    hands = served.hands()
    hands.state("Boot", {})
    served.endpoint.faults.plan(drop, action, when)
    answer = hands.set(step(), frozenset())
    hands.close()
    assert (answer.before["start"], answer.after["start"]) == ("start", "nothing")
    assert start_action(served) == "nothing"
    assert len(served.host.calls("set")) == 1
    assert kinds(served) == ["waiting"]
    assert "reading the state" in served.events[0].text


@pytest.mark.costly
def test_a_set_that_outlives_its_deadline_is_waited_for_and_not_repeated(served: Served) -> None:
    served.clock.hold(LONG)
    served.host.answers.faults.add(InjectedFault("VmActions", "set", seconds=LONG))
    told: list[ProgressEvent] = []

    def tell(event: ProgressEvent) -> None:
        told.append(event)
        assert served.clock.reached.wait(PATIENCE_S)
        assert start_action(served) == "start"
        served.clock.release(LONG)

    hands = served.hands(tell, HastyOnce(served.connector()))
    assert hands.set(step(), frozenset()).after["start"] == "nothing"
    hands.close()
    assert [event.kind for event in told] == ["waiting"]
    assert len(served.host.calls("set")) == 1
    lost, settling = served.host.sessions
    assert not lost.stopped
    assert [request["exclusive"] for request in settling.requests] == [True]


def test_what_somebody_else_made_of_it_meanwhile_is_what_the_second_set_starts_from(served: Served) -> None:
    def tell(event: ProgressEvent) -> None:
        served.host.machine.vms[VM].start_action = "start-if-running"

    hands = served.hands(tell)
    hands.state("Boot", {})
    served.endpoint.faults.plan(drop, Action.COMMAND)
    answer = hands.set(step(), frozenset())
    hands.close()
    assert answer.before["start"] == "start-if-running"
    assert [call["expect"] for call in served.host.calls("set")] == [{"start": "start-if-running"}]


def test_a_set_that_is_lost_twice_is_left_to_whoever_resumes(served: Served) -> None:
    hands = served.hands()
    hands.state("Boot", {})
    served.host.answers.faults.add(InjectedFault("VmActions", "set", seconds=LONG))
    served.clock.at[LONG] = lambda: served.endpoint.faults.plan(drop, Action.RECEIVE, Phase.FINISHED)
    served.endpoint.faults.plan(drop, Action.COMMAND)
    with pytest.raises(SessionDropped):
        hands.set(step(), frozenset())
    assert len(served.host.calls("set")) == 1
    assert (hands.state("VmActions", {"vm": VM}) or {})["start"] == "nothing"
    hands.close()


def test_a_lost_set_of_what_is_gone_is_not_found(served: Served) -> None:
    hands = served.hands()
    hands.state("Boot", {})
    served.endpoint.faults.plan(drop, Action.COMMAND)
    with raises("NotFound"):
        hands.set(step(vm=NOBODY), frozenset())
    hands.close()
    assert served.host.calls("set") == []


def test_a_set_that_finds_drift_changes_nothing_and_is_not_tried_again(served: Served) -> None:
    hands = served.hands()
    with pytest.raises(Drifted):
        hands.set(step(before="start-if-running"), frozenset())
    hands.close()
    assert start_action(served) == "start"
    assert len(served.host.calls("set")) == 1


def test_a_read_whose_answer_is_lost_is_read_again_in_a_new_session(served: Served) -> None:
    hands = served.hands()
    hands.state("Boot", {})
    served.endpoint.faults.plan(drop, Action.RECEIVE, Phase.FINISHED)
    assert hands.state("VmActions", {"vm": VM}) == {"stop": "save", "start": "start"}
    hands.close()
    assert len(served.host.sessions) == 2
    assert all(session.ran[0] == SCRIPT for session in served.host.sessions)


def test_a_read_that_is_lost_twice_fails_and_leaves_no_dead_session_behind(served: Served) -> None:
    hands = served.hands()
    hands.state("Boot", {})
    served.host.answers.faults.add(InjectedFault("Boot", "get", seconds=LONG, times=2))
    served.clock.at[LONG] = lambda: served.endpoint.faults.plan(drop, Action.RECEIVE, Phase.FINISHED)
    with pytest.raises(SessionDropped):
        hands.state("Boot", {})
    assert hands.state("Boot", {}) is not None
    hands.close()
    assert len(served.host.sessions) == 3


@pytest.mark.costly
def test_a_read_that_times_out_leaves_no_busy_session_behind(served: Served) -> None:
    hands = served.hands(connector=HastyOnce(served.connector()))
    served.host.answers.faults.add(InjectedFault("Boot", "get", seconds=LONG))
    served.clock.hold(LONG)
    with pytest.raises(TimedOut):
        hands.state("Boot", {})
    assert hands.state("Boot", {}) is not None
    hands.close()
    assert len(served.host.sessions) == 2


def test_one_session_serves_all_calls_of_a_run(served: Served) -> None:
    hands = served.hands()
    hands.facts()
    hands.set(step(), frozenset())
    hands.facts(settled=True)
    hands.close()
    (session,) = served.host.sessions
    parts = [part for sent in session.sent for part in sent]
    assert sorted(parts) == sorted(set(parts))


def test_a_step_uses_only_consents_that_it_may_need(served: Served) -> None:
    hands = served.hands()
    hands.set(step(), frozenset({"force-dismount", "vm-turn-off"}))
    hands.close()
    (call,) = served.host.calls("set")
    assert call["how"]["accept"] == []


def test_a_host_that_has_no_room_for_a_session_yet_is_waited_for(served: Served) -> None:
    served.endpoint.faults.plan(exceed_quota, Action.CREATE, times=3)
    hands = served.hands()
    hands.wait_until_reachable()
    assert hands.state("Boot", {}) is not None
    hands.close()
    assert len(served.host.sessions) == 1
    (waiting,) = served.events  # what is waited for is told once
    assert (waiting.kind, waiting.text.endswith("; trying again")) == ("waiting", True)
