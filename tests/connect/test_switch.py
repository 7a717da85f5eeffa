"""A switch that cuts the wire under its own controller stays if that comes back, and else undoes itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.connect.served import Served
from winhost.connect.agent import Agent, Connector
from winhost.connect.wire_errors import RemoteError, SessionDropped, Unreachable
from winhost.core.steps import Step
from winhost.lab.physics.lab_section import AdapterPhysics
from winhost.lab.physics.windows_network import Network

HOST = "win11-two-networks"
MANAGED, FREE = "3d9f5a72-c14b-4e80-b6a5-0f7e2c91d846", "8c5e20d7-61fb-4a93-90e2-d7b43f1a6058"
KEY = {"name": "bridge"}
TOO_LONG = 1000.0  # lab seconds


def step(before: str | None, desired: str | None) -> Step:
    return Step(
        "1", "ExternalSwitch", KEY, "desired", {"adapter": before}, {"adapter": desired}, "A switch", "", ("network",)
    )


def network(served: Served) -> Network:
    return served.host.machine.network


def switch(served: Served) -> dict[str, Any]:
    return network(served).switch_state(KEY["name"])


def adapters(served: Served) -> dict[str, Any]:
    return {r.key["adapter"]: r.state for r in served.host.machine.instances("NetworkAdapter")}


def lost(served: Served, **physics: Any) -> None:
    """Something goes wrong with the adapter by which the host is managed."""
    served.host.machine.lab = served.host.machine.lab.model_copy(
        update={"adapters": {MANAGED: AdapterPhysics(**physics)}}
    )


@dataclass
class Later:
    """A way that is opened again only after so many lab seconds."""

    connector: Connector
    pause: Callable[[], None]
    opened: int = 0

    @property
    def host(self) -> str:
        return self.connector.host

    def open(self) -> Agent:
        self.opened += 1
        if self.opened == 2:
            self.pause()
        return self.connector.open()


def test_the_controller_loses_the_wire_comes_back_and_the_switch_stays(serve: Callable[..., Served]) -> None:
    served = serve(HOST)
    before, wire = adapters(served)[MANAGED]["addresses"], network(served).epoch
    hands = served.hands()
    answer = hands.set(step(None, MANAGED), frozenset({"network"}))
    hands.close()
    assert (answer.after["adapter"], answer.after["phase"]) == (MANAGED, "settled")
    assert network(served).epoch == wire + 1
    assert len(served.host.sessions) == 2
    assert [call["desired"] for call in served.host.calls("set")] == [{"adapter": MANAGED}] * 2
    (port,) = (state for state in adapters(served).values() if state["name"] == "vEthernet (bridge)")
    assert (port["addresses"], port["management"], port["profile"]) == (before, True, "private")
    assert network(served).adapters[network(served).management_adapter or ""].switch_vlan == 120
    assert [event.kind for event in served.events] == ["waiting"]


def test_it_is_taken_back_the_same_way_to_the_very_state_found(serve: Callable[..., Served]) -> None:
    served = serve(HOST)
    before = served.host.machine.comparable_state()
    hands = served.hands()
    hands.set(step(None, MANAGED), frozenset({"network"}))
    answer = hands.set(step(MANAGED, None), frozenset({"network"}))
    hands.close()
    assert (answer.after["adapter"], answer.after["phase"]) == (None, "none")
    assert served.host.machine.comparable_state() == before


def test_on_an_adapter_that_carries_nobody_the_controller_shows_all_the_same_that_it_is_there(
    serve: Callable[..., Served],
) -> None:
    served = serve(HOST)
    wire = network(served).epoch
    hands = served.hands()
    answer = hands.set(step(None, FREE), frozenset({"network"}))
    hands.close()
    assert answer.after["phase"] == "settled"
    assert network(served).epoch == wire
    assert len(served.host.sessions) == 2


@pytest.mark.parametrize(
    ("physics", "says"),
    [
        ({"comes_back": False}, "Nobody came back"),
        ({"loses_link": True}, "has no link"),
        ({"comes_back": False, "loses_static": True}, "Nobody came back"),
    ],
)
def test_a_host_that_cannot_be_reached_any_more_undoes_it_by_itself(
    serve: Callable[..., Served], physics: dict[str, Any], says: str
) -> None:
    served = serve(HOST)
    lost(served, **physics)
    before = served.host.machine.comparable_state()
    hands = served.hands(connector=Later(served.connector(), lambda: network(served).pass_time(TOO_LONG)))
    with pytest.raises(RemoteError) as caught:
        hands.set(step(None, MANAGED), frozenset({"network"}))
    hands.close()
    assert caught.value.fault.code == "Winhost.SwitchUndone"
    assert says in caught.value.fault.message
    after = served.host.machine.comparable_state()
    assert switch(served) == {**switch(served), "adapter": None, "phase": "undone"}
    assert {n: r for n, r in after.items() if n != "ExternalSwitch"} == {
        n: r for n, r in before.items() if n != "ExternalSwitch"
    }


def test_while_it_cannot_be_reached_nobody_gets_through(serve: Callable[..., Served]) -> None:
    served = serve(HOST)
    lost(served, comes_back=False)
    agent = served.open()
    with pytest.raises(SessionDropped):
        agent.set("ExternalSwitch", KEY, {"adapter": MANAGED}, {}, {})
    with pytest.raises(Unreachable):
        served.open()
    assert switch(served)["phase"] == "awaiting"
    network(served).pass_time(TOO_LONG)
    served.open().close()
    assert switch(served)["phase"] == "undone"


def test_without_its_controller_it_goes_back(serve: Callable[..., Served]) -> None:
    served = serve(HOST)
    before = adapters(served)
    agent = served.open()
    with pytest.raises(SessionDropped):
        agent.set("ExternalSwitch", KEY, {"adapter": FREE}, {}, {})
    agent.close()
    assert switch(served)["phase"] == "awaiting"
    network(served).pass_time(TOO_LONG)
    assert switch(served)["phase"] == "undone"
    assert adapters(served) == before


def test_a_restart_meanwhile_takes_it_back_too(serve: Callable[..., Served]) -> None:
    served = serve(HOST)
    before = adapters(served)
    with pytest.raises(SessionDropped):
        served.open().set("ExternalSwitch", KEY, {"adapter": MANAGED}, {}, {})
    served.host.machine.restart_computer()
    served.host.machine.wait_until_ready()
    network(served).pass_time(TOO_LONG)
    assert switch(served)["phase"] == "undone"
    assert adapters(served) == before


def test_who_asks_again_after_it_was_told_tries_again(serve: Callable[..., Served]) -> None:
    served = serve(HOST)
    lost(served, refuses=True)
    hands = served.hands()
    for _ in range(2):
        with pytest.raises(RemoteError, match="not created"):
            hands.set(step(None, MANAGED), frozenset({"network"}))
    lost(served)
    assert hands.set(step(None, MANAGED), frozenset({"network"})).after["phase"] == "settled"
    hands.close()
