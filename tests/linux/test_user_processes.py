"""A user cannot be removed while its processes run on this machine; those of containers with the same id do not
count.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from tests.linux.sandbox import Sandbox
from tests.processes import PATIENCE_S, started
from winhost.connect.agent import Agent
from winhost.connect.wire_errors import RemoteError

pytestmark = pytest.mark.real

USER = {"user": "winhost-serving"}
SLEEPS = """\
import os, sys, time
os.chroot(sys.argv[1])
os.setuid(int(sys.argv[2]))
print("runs", flush=True)
time.sleep(60)
"""


def running(sandbox: Sandbox, root: str, uid: int) -> AbstractContextManager[Any]:
    """A process with this root."""
    return started(sandbox.inside("python3", "-c", SLEEPS, root, str(uid)), stdout=PIPE, text=True)


def test_a_process_of_a_container_with_its_number_keeps_no_user(agent: Agent, sandbox: Sandbox, tmp_path: Path) -> None:
    uid = agent.set("LinuxUser", USER, {"there": True, "system": True, "home": "/srv"}, {}, {}).after["uid"]
    with running(sandbox, "/", uid) as its_own, running(sandbox, str(tmp_path), uid) as of_a_container:
        assert [each.stdout.readline() for each in (its_own, of_a_container)] == ["runs\n"] * 2
        with pytest.raises(RemoteError, match=rf"still run: {its_own.pid}\.") as caught:
            agent.set("LinuxUser", USER, {"there": False}, {}, {})
        assert caught.value.fault.code == "Winhost.InUse"
        its_own.kill()
        its_own.wait(PATIENCE_S)
        assert agent.set("LinuxUser", USER, {"there": False}, {}, {}).after["there"] is False
        assert of_a_container.poll() is None
        of_a_container.kill()
