"""The network's resources: what rollback puts back, what may be wanted, and that the task of a switch has all it
calls.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.resources.test_scripts import CMDLETS, Script, calls, said, scripts
from tests.rows import each_row
from winhost.core.conditions import consents_of
from winhost.core.steps import Change
from winhost.core.undo import Keep, find_undo
from winhost.resources.registry import RULES, WINDOWS
from winhost.resources.windows.read_only import NetworkAdapter

SWITCH, FORWARD, FIREWALL = (
    WINDOWS["ExternalSwitch"],
    WINDOWS["PortForward"],
    WINDOWS["HyperVFirewall"],
)
GUID, OTHER = "3d9f5a72-c14b-4e80-b6a5-0f7e2c91d846", "8c5e20d7-61fb-4a93-90e2-d7b43f1a6058"
MADE = {"adapter": GUID, "management_os": True, "vms": 0, "phase": "settled", "detail": None}


@pytest.mark.parametrize(
    ("now", "left"),
    [
        ({}, {"adapter": None}),
        ({"phase": "undone"}, {"adapter": None}),
        ({"vms": 2}, Keep("2 VM adapter(s) are connected to it")),
        ({"phase": "none"}, Keep("this switch is not the one that winhost made")),
        ({"adapter": OTHER}, Keep("adapter changed since by somebody else", {})),
        ({"adapter": None, "phase": "none"}, {}),
    ],
)
def test_rollback_takes_a_switch_only_if_it_is_ours_and_nobody_uses_it(now: dict[str, Any], left: Any) -> None:
    assert find_undo(RULES[SWITCH.name], {"adapter": None}, MADE, {**MADE, **now}) == left


@pytest.mark.parametrize("resource", [SWITCH, FORWARD, FIREWALL], ids=lambda resource: resource.name)
def test_whatever_touches_the_network_asks_first(resource: Any) -> None:
    assert tuple(consents_of(resource.risks, Change({}, {}, {}))) == ("network",)
    assert resource.asks == ("network",)


@each_row(
    ("resource", "desired", "fits"),
    [
        (SWITCH, {"adapter": GUID}, True),
        (SWITCH, {"adapter": None}, True),
        (SWITCH, {"adapter": GUID.upper()}, False),
        (SWITCH, {"adapter": f"{GUID}\n"}, False),
        (SWITCH, {"adapter": "Ethernet"}, False),
        (SWITCH, {"adapter": 7}, False),
        (FORWARD, {"target": "172.28.120.9", "connect_port": 8000, "allowed": ["10.0.0.0/8"]}, True),
        (FORWARD, {"target": None, "connect_port": None, "allowed": None}, True),
        (FORWARD, {"target": "172.28.120.9\n"}, False),
        (FORWARD, {"target": "172.28.120.256"}, False),
        (FORWARD, {"target": "fd00::1"}, False),
        (FORWARD, {"connect_port": 0}, False),
        (FORWARD, {"connect_port": True}, False),
        (FORWARD, {"connect_port": 65536}, False),
        (FORWARD, {"allowed": []}, False),
        (FORWARD, {"allowed": ["10.0.0.1/8"]}, False),
        (FORWARD, {"allowed": ["10.0.0.1"]}, False),
        (FORWARD, {"allowed": "10.0.0.0/8"}, False),
        (FORWARD, {"allowed": [None]}, False),
        (FIREWALL, {"inbound": "block", "ports": [22, 8000]}, True),
        (FIREWALL, {"ports": []}, True),
        (FIREWALL, {"ports": ["22"]}, False),
        (FIREWALL, {"allowed": ["192.0.2.0/24", "2001:db8::/32"]}, True),
        (FIREWALL, {"allowed": None}, True),
        (FIREWALL, {"allowed": []}, False),
        (FIREWALL, {"allowed": ["Any"]}, False),
        (FIREWALL, {"allowed": ["2001:db8::1/32"]}, False),
        (FIREWALL, {"inbound": "Block"}, False),
    ],
)
def test_what_may_be_wanted(resource: Any, desired: dict[str, Any], fits: bool) -> None:
    assert (resource.check_values(desired) is None) is fits


def functions() -> Iterator[tuple[str, Script]]:
    """Every function of ours as a script of its own."""
    for script in scripts():
        for node in script.nodes("function_statement"):
            name = next(child for child in node.children if child.type == "function_name")
            yield said(name), Script(script.name, said(node))


def test_the_task_of_a_switch_takes_along_all_that_it_calls_and_nothing_else() -> None:
    ours = dict(functions())
    listed = re.search(r"\$names = @\(\n(.*?)\n    \)", ours["Join-WinhostSwitchScript"].text, re.DOTALL)
    assert listed
    names = set(re.findall(r"'([\w-]+)'", listed[1]))
    reached, waiting = set(), {"Invoke-WinhostSwitchTask"}
    while waiting:
        name = waiting.pop()
        reached.add(name)
        waiting |= {call.name for call in calls(ours[name]) if call.name not in CMDLETS} - reached
    assert names == reached


@pytest.mark.parametrize(
    ("told", "described"),
    [
        ({"service": "PanGpd"}, "Virtual Ethernet Adapter (service PanGpd)"),
        ({"service": None}, "Virtual Ethernet Adapter"),
        ({}, "Virtual Ethernet Adapter"),
    ],
)
def test_a_vpn_is_described_with_the_service_that_may_be_all_that_tells_it(
    told: dict[str, Any], described: str
) -> None:
    empty = dict.fromkeys(("mac", "speed", "vlan", "gateway", "profile", "switch"))
    lists = dict.fromkeys(("addresses", "dns", "filters"), ())
    words = {"name": "Ethernet 5", "description": "Virtual Ethernet Adapter", "kind": "vpn", "status": "up"}
    assert NetworkAdapter(**{**words, **empty, **lists, "management": False, **told}).described == described
