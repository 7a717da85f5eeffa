"""The Linux that winhost runs on, as a host without SSH: what comes through, what is refused, and what goes on."""

import json
import os
import signal
import socketserver
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.connect.sshd import PROGRAM
from tests.errors import raises
from tests.processes import wait_for
from winhost.cli.live_hosts import connector_for
from winhost.cli.output import error_text
from winhost.connect import this_linux
from winhost.connect.ssh import SshWire
from winhost.connect.wire_errors import SessionDropped, TimedOut
from winhost.model.fleet import LinuxHost, load_fleet
from winhost.web.server import run_server as running

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="this is no Linux")

TELLS = """
import json, os, sys
for line in sys.stdin.buffer:
    print(json.dumps({"answers": [{"environment": dict(os.environ), "python": sys.executable, "cwd": os.getcwd(),
                                   "session": os.getsid(0)}]}), flush=True)
"""


def target(**changes: Any) -> LinuxHost:
    return LinuxHost(name="here", address="localhost", is_this_computer=True, **changes)


@pytest.fixture
def wire() -> Iterator[SshWire]:
    opened = SshWire(target(), PROGRAM)
    yield opened
    opened.close()


def ask(wire: SshWire, do: str, what: Any = None, within: float = 300) -> Any:
    return json.loads(wire.invoke(json.dumps([do, what]), within))["answers"][0]


def test_long_and_foreign_values_come_through(wire: SshWire) -> None:
    for value in ("ä" * 600_000, {"'": '"$(reboot)"\n'}, None):
        assert ask(wire, "echo", value) == value


def test_a_host_of_the_fleet_file_is_read_without_ssh(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(
        "schema: winhost.fleet/1\nhosts:\n"
        "  here: {kind: linux, address: localhost, ssh: {sudo: false}}\n"
        "  named: {kind: linux, address: localhost, ssh: {user: ada, agent: true}}\n"
        "  localhost: {kind: linux, ssh: {sudo: false}}\n"
    )
    here, by_ssh, by_name = load_fleet(file).hosts
    assert isinstance(here, LinuxHost)
    assert isinstance(by_ssh, LinuxHost)
    assert isinstance(by_name, LinuxHost)
    assert (here.is_this_computer, by_ssh.is_this_computer, by_name.is_this_computer) == (True, False, True)
    agent = connector_for(here).open()
    state = agent.get("LinuxSystem", {}) or {}
    assert state["kernel"] == os.uname().release
    assert agent.route() is None
    agent.close()


def test_another_address_still_needs_a_logon(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("schema: winhost.fleet/1\nhosts:\n  there: {kind: linux, address: 192.0.2.1}\n")
    with raises("FileFaults") as caught:
        load_fleet(file)
    assert "which account to log on with" in error_text(caught.value)


def test_it_gets_neither_the_secrets_nor_the_python_of_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python3").symlink_to("/bin/false")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("ALICE_KEY", "canary-51c2")
    wire = SshWire(target(), TELLS)
    told = ask(wire, "")
    wire.close()
    assert "canary" not in str(told)
    assert told["cwd"] == "/"
    assert told["session"] != os.getsid(0), "Ctrl-C of the terminal would end it"


def test_a_program_that_ends_says_why(wire: SshWire) -> None:
    with raises("SessionDropped", match="exit code 3: said on the way"):
        ask(wire, "exit", 3)
    with pytest.raises(SessionDropped):
        ask(wire, "echo", 1)


def test_a_machine_without_python_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(this_linux, "_PATH", str(tmp_path))
    for large in ("a", "a" * 3_000_000):  # it ends before, or while it is sent
        wire = SshWire(target(), PROGRAM)
        with raises("NoShell", match="python3") as refused:
            ask(wire, "echo", large)
        assert "systemctl" not in f"{refused.value.hint}", "no sshd is in between"
        wire.close()


def test_silence_ends_in_time() -> None:
    wire = SshWire(target(operation_timeout=1), PROGRAM)
    with pytest.raises(TimedOut):
        ask(wire, "silence", 2)
    wire.close()


def test_it_outlives_a_winhost_that_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "go"
    program = f"from tests.connect.test_this_linux import *\nask(SshWire(target(), PROGRAM), 'until', {str(mark)!r})\n"
    winhost = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2])
    wait_for(lambda: (tmp_path / "go.begun").exists())
    winhost.send_signal(signal.SIGKILL)
    winhost.wait(300)
    mark.touch()
    wait_for(lambda: (tmp_path / "go.done").exists())


def test_a_tunnel_is_a_plain_connection(wire: SshWire) -> None:
    class Echo(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(self.request.recv(1000))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server, running(server):
        port = server.server_address[1]
        with wire.tunnel("127.0.0.1", port) as through:
            through.sendall(b"x")
            assert through.recv(10) == b"x"
    with raises("NotTunnelled"):
        wire.tunnel("127.0.0.1", port)


def test_words_that_come_while_others_are_read_are_kept() -> None:
    class Growing(bytearray):
        def __getitem__(self, key: Any) -> Any:
            found = super().__getitem__(key)
            self.extend(b", second")
            return found

    process = this_linux.LocalProcess("true")
    process._stderr = Growing(b"first")
    assert process.recv_stderr(4096) == b"first"
    assert process.recv_stderr(4096) == b", second"
    process.close()
