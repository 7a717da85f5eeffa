"""What Windows opens and forwards for an endpoint that other machines reach, and who is let in where."""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.guest_world import guest_world
from tests.engine.wsl2_world import Wsl2World, playbook, wsl2_world
from tests.errors import raises
from tests.hub.stand_in_hub import StandInHub
from tests.serving.one_plan import CONSENTS, hub, inside, join, joining, lines_at_the_end
from winhost.core.answers import Record
from winhost.lab.linux.serving import ServedEngines
from winhost.model.plan import Plan
from winhost.resources.host import HostFacts

__all__ = ["hub"]

LAN = {"exposure": "lan", "allow": ("10.20.0.0/16",), "plain_http": True}


def found_in(here: Any, resource: str) -> dict[str, Any]:
    answer = here.facts().resources[resource]
    assert isinstance(answer, tuple)
    return {next(iter(each.key.values())): each.state for each in answer if isinstance(each, Record)}


def limited(plan: Plan) -> list[Any]:
    """Of the Linux: who may come to which port."""
    book: Any = plan.request.playbook
    rules = [each for each in book["resources"] if each["resource"] == "FirewallPort"]
    return [(each["key"]["port"], each["desired"]["allowed"]) for each in rules]


@pytest.mark.costly
def test_mirrored_the_hyper_v_firewall_opens_both_ports_and_the_distro_limits_each(
    tmp_path: Path, hub: StandInHub
) -> None:
    here = wsl2_world(tmp_path)
    found = here.state()
    join(here, tmp_path, hub, **LAN)
    plan = here.plan()
    outcome = here.apply(plan, CONSENTS)
    assert outcome.holds
    assert f"  winhost open {here.host}" in lines_at_the_end(here, outcome)  # nobody told its address
    (opened,) = [each for each in found_in(here, "HyperVFirewall").values() if each["ports"]]
    assert (opened["ports"], opened["allowed"]) == ([2222, 8443], ["192.168.1.0/24", "10.20.0.0/16"])
    assert found_in(here, "WslAccess")["winhost"]["allowed"] == ["192.168.1.0/24"]
    assert limited(plan) == [("8443", ["10.20.0.0/16"])]
    assert inside(here).part(ServedEngines).serves()
    assert here.rollback(CONSENTS).kept == ("WSL itself: kept: winhost never downgrades WSL",)
    assert {name for name, state in here.state().items() if state != found[name]} == {"Wsl"}


@pytest.mark.costly
def test_behind_nat_of_wsl_windows_forwards_the_port_and_judges_who_comes(tmp_path: Path, hub: StandInHub) -> None:
    here = wsl2_world(tmp_path, "win11-home-1gpu", network="nat")
    joined, _ = joining(tmp_path, hub, **LAN).add_to_request(HostFacts(here.facts()), here.request)
    here.book = joined.playbook.content
    plan = here.plan()
    assert here.apply(plan, CONSENTS).holds
    forwards = found_in(here, "PortForward")
    assert set(forwards) == {"2222", "8443"}
    served = {"target": "127.0.0.1", "connect_port": 8443, "allowed": ["10.20.0.0/16"]}
    assert forwards["8443"] == served
    assert limited(plan) == []
    here.rollback(CONSENTS)
    assert found_in(here, "PortForward") == {}


@pytest.mark.costly
def test_behind_nat_of_hyper_v_the_guest_lets_in_the_host_alone(tmp_path: Path, hub: StandInHub) -> None:
    here = guest_world(tmp_path)
    here.machine.network.switches = []
    found = here.state()
    join(here, tmp_path, hub, **LAN)
    plan = here.plan()
    assert here.apply(plan, CONSENTS).holds
    forwards = found_in(here, "PortForward")
    assert (forwards["8443"]["connect_port"], forwards["8443"]["allowed"]) == (8443, ["10.20.0.0/16"])
    assert forwards["8443"]["target"] == forwards["2222"]["target"]
    assert limited(plan) == [("8443", ["192.168.211.1/32"])]
    assert "Port 8443 of the host, to the endpoint of the new VM" in [step.title for step in plan.steps]
    assert here.rollback(CONSENTS).outcome == "rolled back"
    assert here.state() == found


@pytest.mark.costly
def test_on_an_external_switch_nothing_of_windows_is_touched(tmp_path: Path, hub: StandInHub) -> None:
    here = guest_world(tmp_path)
    join(here, tmp_path, hub, **LAN)
    plan = here.plan()
    assert limited(plan) == [("8443", ["10.20.0.0/16"])]
    outcome = here.apply(plan, CONSENTS)
    assert outcome.holds
    assert "  winhost open gpu-03" in lines_at_the_end(here, outcome)
    assert found_in(here, "PortForward") == {}


def test_before_there_is_hyper_v_it_says_what_to_do_first(tmp_path: Path, hub: StandInHub) -> None:
    here = guest_world(tmp_path, host="server2025-3gpu")
    with raises("NetworkUnknown"):
        join(here, tmp_path, hub, **LAN)


def test_on_the_machine_alone_windows_opens_nothing_for_it(tmp_path: Path, hub: StandInHub) -> None:
    here: Wsl2World = wsl2_world(tmp_path)
    here.book = playbook()
    join(here, tmp_path, hub)
    assert here.apply(here.plan(), CONSENTS).holds
    assert [each["ports"] for each in found_in(here, "HyperVFirewall").values() if each["ports"]] == [[2222]]
