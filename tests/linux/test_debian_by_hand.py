"""run.py of a bundle in a real Debian: it adds a port, a group, a user and a key, and removes them."""

import json
import subprocess
from contextlib import closing
from typing import Any

import pytest

from tests.linux.debian import Debian
from tests.linux.test_by_hand_real import plan_for
from tests.linux.unpacked import unpack_linux
from tests.processes import PATIENCE_S
from winhost.core.steps import DesiredResource
from winhost.lab.physics.ssh_keys import public_line

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # they take turns, and one is fetched

KEY = {"user": "ada", "key": public_line(b"5" * 32)}
USER = {"there": True, "shell": "/bin/bash", "groups": ["models"]}
DESIRED = tuple(
    DesiredResource(resource, key, desired, resource, "For the test.")
    for resource, key, desired in (
        ("LinuxGroup", {"group": "models"}, {"there": True, "system": True}),
        ("LinuxUser", {"user": "ada"}, USER),
        ("SshKey", KEY, {"present": True, "comment": "ada's"}),
        ("FirewallPort", {"port": "8000"}, {"allowed": ["10.0.0.0/8"]}),
    )
)
WATCHED = ("etc/passwd", "etc/shadow", "etc/group", "etc/gshadow", "etc/subuid")


def by_hand(debian: Debian, *words: str) -> Any:
    command = debian.inside("python3", "-I", "/root/by-hand/run.py", *words, "--json")
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S).stdout)


def test_they_come_stand_and_go_by_hand(debian: Debian) -> None:
    found = [(debian.root / path).read_bytes() for path in WATCHED]
    rules = debian.run("nft", "list", "ruleset")
    with closing(debian.agent()) as agent:
        plan = plan_for(agent, DESIRED, (debian.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().strip())
    unpack_linux(plan, debian.root / "root/by-hand")
    assert len(by_hand(debian, "apply", "--check")["steps"]) == 4
    assert by_hand(debian, "apply")["error"]["kind"] == "ConsentNeeded"
    assert by_hand(debian, "apply", "--accept", "network")["error"]["kind"] == "NotKept"
    assert by_hand(debian, "apply", "--accept", "network", "--keep")["outcome"] == "applied"
    assert by_hand(debian, "verify")["holds"] is True
    assert by_hand(debian, "apply", "--accept", "network")["changed"] == 0
    assert "dport 8000" in debian.run("nft", "list", "ruleset")
    assert (debian.root / "home/ada/.ssh/authorized_keys").read_text() == f"{KEY['key']} ada's\n"
    assert by_hand(debian, "rollback", "--accept", "network")["error"]["kind"] == "NotKept"
    back = by_hand(debian, "rollback", "--accept", "network", "--keep")
    assert (back["outcome"], back["kept"]) == ("rolled back", [])
    assert [(debian.root / path).read_bytes() for path in WATCHED] == found
    assert debian.run("nft", "list", "ruleset") == rules
    assert not (debian.root / "home/ada").exists()
