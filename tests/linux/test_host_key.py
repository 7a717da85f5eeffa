"""A Linux gives itself another SSH host key: both halves change together, and nothing else is left of it."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.errors import raises
from tests.linux.sandbox import Sandbox
from tests.processes import PATIENCE_S
from winhost.connect.agent import Agent

KEY = "/etc/ssh/ssh_host_ed25519_key"


@pytest.fixture
def _keys(sandbox: Sandbox) -> None:
    """A machine with a host key, and with the folder that sshd's own check needs."""
    if shutil.which("sshd", path="/usr/sbin:/sbin") is None:
        pytest.skip("there is no sshd here")
    sandbox.run("sh", "-c", f"mkdir -p /run/sshd; rm -f {KEY}*; ssh-keygen -q -t ed25519 -N '' -f {KEY}")


def put(agent: Agent, **desired: Any) -> Mapping[str, Any]:
    return agent.set("SshHostKey", {}, desired, {}, {}).after


def public_half(path: Path) -> str:
    """Compute the public key from the private one with ssh-keygen."""
    done = subprocess.run(
        ["ssh-keygen", "-y", "-f", path], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    return " ".join(done.stdout.split()[:2])


@pytest.mark.usefixtures("_keys")
def test_the_prepared_key_takes_the_place_of_the_old_one(sandbox: Sandbox, agent: Agent) -> None:
    before = put(agent, prepared=True)
    assert before["key"] != before["next"]
    assert public_half(sandbox.path(KEY)) == before["key"]
    assert put(agent, key=before["next"]) == {"key": before["next"], "next": None, "prepared": False}
    assert public_half(sandbox.path(KEY)) == before["next"]
    assert sandbox.path(KEY).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in sandbox.path("/etc/ssh").glob("*.winhost*")] == []


@pytest.mark.usefixtures("_keys")
def test_where_it_was_broken_off_all_of_it_is_done_again(sandbox: Sandbox, agent: Agent) -> None:
    before = put(agent, prepared=True)
    # After the private half: nobody has been told yet that sshd shows the new one.
    sandbox.path(KEY).write_bytes(sandbox.path(f"{KEY}.winhost").read_bytes())
    assert agent.get("SshHostKey", {}) == before
    assert put(agent, key=before["next"])["key"] == before["next"] == public_half(sandbox.path(KEY))


@pytest.mark.usefixtures("_keys")
def test_a_key_that_sshd_cannot_use_leaves_the_old_one(sandbox: Sandbox, agent: Agent) -> None:
    before = put(agent, prepared=True)
    sandbox.path(f"{KEY}.winhost").write_text("nothing", "ascii")
    with raises("RemoteError"):
        put(agent, key=before["next"])
    assert public_half(sandbox.path(KEY)) == before["key"]
