"""winhost up, chat, status and down on the Linux that serves, without a fleet file, SSH or Windows."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Line
from tests.cli.up_desk import IMAGE, hub_of_all
from tests.connect.local_linux import local_linux
from tests.processes import PATIENCE_S
from winhost.connect.ssh_logon import SshConnection
from winhost.lab.linux.linuxes import LinuxHost
from winhost.lab.linux.serving import STAND_IN
from winhost.lab.running_lab import Lab

LINUX = Path(__file__).parents[2] / "examples/linux/ubuntu-2xh100.json"
pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="this is no Linux")


def no_ssh(*_: object) -> None:
    raise AssertionError("nothing is between winhost and this Linux")


@pytest.fixture
def here(line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LinuxHost]:
    monkeypatch.setattr("socket.gethostname", lambda: "My-Box.example.com")
    monkeypatch.setattr("winhost.cli.named_hosts.getuser", lambda: "root")
    monkeypatch.setattr(SshConnection, "open", no_ssh)
    programs = tmp_path / "programs"
    programs.mkdir()
    with Lab([LINUX], tmp_path / "lab", scale=0.001) as lab:
        (linux,) = lab.linux_hosts.values()
        with local_linux(programs, linux, monkeypatch):
            yield linux


@contextmanager
def listening(linux: LinuxHost) -> Iterator[str]:
    """Where the gateway is to listen: a port of this computer that leads to that of the simulated one."""

    class Leads(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            sshd = linux.find_sshd()
            found = sshd.connect("127.0.0.1", int(self.server.server_address[1])) if sshd else None
            if found is None:
                return
            with found:
                back = threading.Thread(target=_hand_on, args=(found, self.request), daemon=True)
                back.start()
                _hand_on(self.request, found)
                back.join(PATIENCE_S)

    class Listening(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Listening(("127.0.0.1", 0), Leads) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def _hand_on(source: socket.socket, sink: socket.socket) -> None:
    try:
        while piece := source.recv(65536):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return


@pytest.mark.costly
def test_it_serves_and_is_given_back(line: Line, here: LinuxHost) -> None:
    with hub_of_all() as hub, listening(here) as address:
        serves = ("--hub", hub.url, *IMAGE, "--listen", address)
        before = here.machine.comparable_state()
        done = line("up", "--yes", *serves)
        assert done.code == 0, done.err
        assert "my-box can serve openai/gpt-oss-120b by linux: supported" in done.out
        assert f"Base URL: http://{address}/v1" in done.out
        assert STAND_IN in line("chat", "Say hello").out
        shown = line("status")
        assert (shown.code, f"at http://{address}/v1" in shown.out) == (0, True), shown.out + shown.err
        for word in ("my-box", "localhost"):
            assert "no tunnel is needed" in line("open", word).out
        assert "served already" in line("up", *serves).out
        gone = line("down", "--yes")
        assert gone.code == 0, gone.err
        assert here.machine.comparable_state() == before
        assert "Nothing is served yet" in line("status").out


@pytest.mark.costly
def test_a_gateway_that_does_not_answer_is_told_without_words_of_windows(line: Line, here: LinuxHost) -> None:
    with hub_of_all() as hub, socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert line("up", "--yes", "--hub", hub.url, *IMAGE, "--listen", address).code == 0
        other.close()
        said = line("chat", "Say hello")
    assert (said.code, "the gateway is not running" in said.err, "PowerShell" in said.err) == (5, True, False), said.err
