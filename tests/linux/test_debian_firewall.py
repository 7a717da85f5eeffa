"""Ports in the firewall of a real Debian: what reaches them, what stays shut, and what of others stays as it was."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.linux.debian import INSIDE, OUTSIDE, Debian
from tests.processes import PATIENCE_S, wait_for
from winhost.connect.wire_errors import RemoteError, SessionDropped
from winhost.core.undo import find_undo
from winhost.resources.registry import RULES

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # they take turns, and one is fetched

PORT, OTHER = {"port": "8000"}, {"port": "8001"}
NEAR, FAR = [f"{OUTSIDE}/32"], ["10.0.0.0/8", "192.168.0.0/16", "fd00::/8"]
LISTEN = "import socket, time; [socket.create_server(('', n), backlog=99) for n in (8000, 8001)]; time.sleep(9999)"
THEIRS = "table inet theirs { chain input { type filter hook input priority 0; policy accept; tcp dport 9 drop; }; }"
UFW = ["ip filter INPUT", "ip6 filter INPUT"]
FILES = ("etc/nftables.d/90-winhost-ports.nft", "etc/systemd/system/winhost-firewall.service")


@pytest.fixture(scope="module")
def listening(debian: Debian) -> Iterator[Debian]:
    """Listen on two ports."""
    process = subprocess.Popen(debian.inside("python3", "-c", LISTEN.replace("[", "kept = [")))
    wait_for(lambda: reaches(8000) and reaches(8001))
    yield debian
    process.kill()
    process.wait(PATIENCE_S)


def reaches(port: int) -> bool:
    try:
        socket.create_connection((INSIDE, port), timeout=0.4).close()
    except OSError:
        return False
    return True


def kept(debian: Debian, key: Any, allowed: list[str] | None, before: list[str] | None = None) -> Any:
    """Asked for again over a new connection."""
    with closing(debian.agent()) as first, pytest.raises(SessionDropped):
        first.set("FirewallPort", key, {"allowed": allowed}, {"allowed": before}, {"within": 60})
    with closing(debian.agent()) as second:
        return second.set("FirewallPort", key, {"allowed": allowed}, {}, {"within": 60})


def rules(debian: Debian) -> str:
    return debian.run("nft", "list", "ruleset")


def refused(debian: Debian, key: Any, allowed: Any) -> str:
    with closing(debian.agent()) as agent, pytest.raises(RemoteError) as caught:
        agent.set("FirewallPort", key, {"allowed": allowed}, {}, {"within": 5})
    return caught.value.fault.code


# ---- nftables


def test_a_port_is_reached_from_its_networks_alone_and_goes_back(listening: Debian) -> None:
    listening.run("nft", THEIRS)
    found = rules(listening)
    answer = kept(listening, PORT, FAR)
    assert answer.after == {"allowed": FAR, "by": "nftables", "others": []}
    assert (reaches(8000), reaches(8001)) == (False, True)
    assert kept(listening, OTHER, NEAR).after["allowed"] == NEAR
    assert (reaches(8000), reaches(8001)) == (False, True)
    assert kept(listening, PORT, [], FAR).after["allowed"] == []
    assert not reaches(8000)
    local = f"import socket; socket.create_connection(('{INSIDE}', 8000), 2)"
    listening.run("python3", "-c", local)
    kept(listening, OTHER, None, NEAR)
    undo = find_undo(RULES["FirewallPort"], {"allowed": None}, answer.after, {**answer.after})
    assert undo == {"allowed": None}
    kept(listening, PORT, None, [])
    assert reaches(8000)
    assert rules(listening) == found
    assert not any((listening.root / path).exists() for path in FILES)
    listening.run("nft", "delete", "table", "inet", "theirs")


def test_rules_hold_after_a_restart_and_after_others_load_theirs_anew(listening: Debian) -> None:
    kept(listening, PORT, FAR)
    listening.run("systemctl", "restart", "nftables.service")
    wait_for(lambda: not reaches(8000))
    listening.run("systemctl", "reload", "nftables.service")
    wait_for(lambda: not reaches(8000))
    listening.run("systemctl", "stop", "nftables.service")
    with closing(listening.agent()) as agent:
        state = agent.get("FirewallPort", PORT) or {}
    assert state["allowed"] is None, "what holds no more is not told"
    kept(listening, PORT, FAR)
    assert not reaches(8000)
    kept(listening, PORT, None, FAR)


def test_nobody_comes_back_and_the_port_is_as_it_was(listening: Debian) -> None:
    with closing(listening.agent()) as agent, pytest.raises(SessionDropped):
        agent.set("FirewallPort", PORT, {"allowed": FAR}, {"allowed": None}, {"within": 3})
    assert not reaches(8000)
    wait_for(lambda: not (listening.root / "var/lib/winhost/undo/agent.py").exists())
    assert reaches(8000)
    assert not any((listening.root / path).exists() for path in FILES)
    (listening.root / "var/lib/winhost/undo/record.json").unlink()


def test_the_port_of_sshd_is_never_limited(listening: Debian) -> None:
    found = rules(listening)
    assert refused(listening, {"port": "22"}, []) == "Winhost.PortOfSsh"
    assert refused(listening, PORT, ["10.0.0.0/8", "10.1.0.0/16"]) == "Winhost.BadRequest"
    assert refused(listening, PORT, ["10.0.0.0/8; flush ruleset"]) == "Winhost.BadRequest"
    assert refused(listening, {"port": "65536"}, []) == "Winhost.BadRequest"
    assert rules(listening) == found


def test_what_another_table_drops_is_told(listening: Debian) -> None:
    listening.run("nft", THEIRS.replace("policy accept; tcp dport 9 drop", "policy drop; tcp dport {22, 8001} accept"))
    answer = kept(listening, PORT, NEAR)
    assert answer.after == {"allowed": NEAR, "by": "nftables", "others": ["inet theirs input"]}
    assert (reaches(8000), reaches(8001)) == (False, True)
    kept(listening, PORT, None, NEAR)
    listening.run("nft", "delete", "table", "inet", "theirs")


def test_firewalld_is_named_and_left_alone(listening: Debian) -> None:
    unit = listening.root / "etc/systemd/system/firewalld.service"
    unit.write_text("[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n")
    listening.run("systemctl", "daemon-reload")
    listening.run("systemctl", "start", "firewalld.service")
    assert refused(listening, PORT, NEAR) == "Winhost.OtherFirewall"
    assert not (listening.root / "var/lib/winhost/undo/agent.py").exists(), "nothing is left to be undone"
    listening.run("systemctl", "stop", "firewalld.service")
    unit.unlink()
    listening.run("systemctl", "daemon-reload")


# ---- ufw


@pytest.fixture
def ufw(listening: Debian) -> Iterator[Debian]:
    """Enabled, with rules of somebody else."""
    listening.run("ufw", "allow", "22/tcp")
    listening.run("ufw", "allow", "9000/tcp")
    listening.run("ufw", "--force", "enable")
    yield listening
    listening.run("ufw", "--force", "reset")
    assert reaches(8000)


def added(debian: Debian) -> str:
    return debian.run("ufw", "show", "added")


def test_where_ufw_rules_it_gets_the_rule_and_keeps_those_of_others(ufw: Debian) -> None:
    found = added(ufw)
    assert not reaches(8000)
    assert kept(ufw, PORT, NEAR).after == {"allowed": NEAR, "by": "ufw", "others": UFW}
    assert reaches(8000)
    assert kept(ufw, PORT, FAR, NEAR).after == {"allowed": FAR, "by": "ufw", "others": UFW}
    assert not reaches(8000)
    kept(ufw, PORT, None, FAR)
    assert added(ufw) == found
    assert refused(ufw, {"port": "9000"}, NEAR) == "Winhost.RuleOfOthers"
    assert refused(ufw, {"port": "22"}, NEAR) == "Winhost.PortOfSsh"
    assert added(ufw) == found
    assert not any((ufw.root / path).exists() for path in FILES)


def test_nobody_comes_back_and_ufw_has_the_rules_that_it_had(ufw: Debian) -> None:
    found = added(ufw)
    with closing(ufw.agent()) as agent, pytest.raises(SessionDropped):
        agent.set("FirewallPort", PORT, {"allowed": NEAR}, {"allowed": None}, {"within": 3})
    assert reaches(8000)
    wait_for(lambda: not (ufw.root / "var/lib/winhost/undo/agent.py").exists())
    assert not reaches(8000)
    assert added(ufw) == found
    with closing(ufw.agent()) as agent:
        assert (agent.get("FirewallPort", PORT) or {})["allowed"] is None
    with pytest.raises(RemoteError, match="Nobody came back"):
        kept(ufw, PORT, NEAR)


def test_nobody_comes_back_and_a_rule_of_ufw_that_was_kept_stands_again(ufw: Debian) -> None:
    found = added(ufw)
    kept(ufw, PORT, NEAR)
    ours = added(ufw)
    with closing(ufw.agent()) as agent, pytest.raises(SessionDropped):
        agent.set("FirewallPort", PORT, {"allowed": None}, {"allowed": NEAR}, {"within": 3})
    assert not reaches(8000)
    wait_for(lambda: not (ufw.root / "var/lib/winhost/undo/agent.py").exists())
    assert reaches(8000)
    assert added(ufw) == ours
    (ufw.root / "var/lib/winhost/undo/record.json").unlink()
    kept(ufw, PORT, None, NEAR)
    assert added(ufw) == found
