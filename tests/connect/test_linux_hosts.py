"""A Linux of its own, behind a real sshd: by which key it is known, how one logs on, and through whom."""

import os
import re
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.connect.sshd import Sshd, keypair, served
from tests.connect.test_ssh import ask, secret
from tests.errors import raises
from tests.processes import PATIENCE_S
from winhost.cli.output import error_text
from winhost.connect.host_keys import HostKeyRefused
from winhost.connect.wire_errors import AuthenticationFailed, Unreachable
from winhost.model.fleet import LinuxHost, load_fleet
from winhost.model.secrets import SecretRef
from winhost.web.server import run_server as running

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with served(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture(scope="module")
def jump(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with served(tmp_path_factory.mktemp("jump")) as running:
        yield running


def fingerprint(running: Sshd, kind: str = "host") -> str:
    command = ["ssh-keygen", "-lf", str(running.folder / f"{kind}.pub")]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout.split()[1]


def known(folder: Path, running: Sshd, *lines: str) -> Path:
    kind, key = (running.folder / "host.pub").read_text().split()[:2]
    path = folder / "known_hosts"
    text = "\n".join(lines or ("[127.0.0.1]:{port} {kind} {key}",)).format(port=running.port, kind=kind, key=key)
    path.write_text(f"# a comment\n\n{text}\n")
    return path


# ---- by what it is known


def test_a_fingerprint_pins_its_key(sshd: Sshd) -> None:
    wire = sshd.wire(host_key=fingerprint(sshd))
    assert ask(wire, "echo", 1) == 1
    wire.close()


def test_another_fingerprint_is_refused_before_anything_is_offered(sshd: Sshd, jump: Sshd) -> None:
    before = sshd.log.read_text()
    with raises("HostKeyRefused") as caught:
        sshd.wire(host_key=fingerprint(jump), name="llm-01")
    said = sshd.log.read_text()[len(before) :]
    assert "publickey" not in said
    assert "Accepted" not in said
    text = error_text(caught.value)
    assert fingerprint(sshd) in text
    assert fingerprint(jump) in text
    assert "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub" in text


def test_a_machine_in_known_hosts_is_let_in(sshd: Sshd, tmp_path: Path) -> None:
    wire = sshd.wire(host_key=None, known_hosts=known(tmp_path, sshd))
    assert ask(wire, "echo", 1) == 1
    wire.close()


def test_a_hashed_name_in_known_hosts_is_found(sshd: Sshd, tmp_path: Path) -> None:
    path = known(tmp_path, sshd)
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(path)], capture_output=True, check=True, timeout=PATIENCE_S)
    assert "127.0.0.1" not in path.read_text()
    wire = sshd.wire(host_key=None, known_hosts=path)
    assert ask(wire, "echo", 1) == 1
    wire.close()


@pytest.mark.parametrize(
    "lines",
    [
        ("[127.0.0.1]:1 {kind} {key}",),
        ("127.0.0.1 {kind} {key}",),
        ("@revoked * {kind} {key}", "[127.0.0.1]:{port} {kind} {key}"),
        ("@cert-authority * {kind} {key}",),
        ("[127.0.0.1]:{port} {kind}", "[127.0.0.1]:{port} {kind} AAAA", "|1|x|y {kind} {key}"),
    ],
)
def test_a_machine_that_nobody_vouches_for_is_refused(sshd: Sshd, tmp_path: Path, lines: tuple[str, ...]) -> None:
    before = sshd.log.read_text()
    with raises("HostKeyUnknown") as caught:
        sshd.wire(
            host_key=None,
            known_hosts=known(tmp_path, sshd, *lines),
            written_at={"host_key": "hosts.llm-01.ssh.host_key"},
        )
    assert isinstance(caught.value, HostKeyRefused)
    assert "Accepted" not in sshd.log.read_text()[len(before) :]
    text = error_text(caught.value)
    assert fingerprint(sshd) in text
    assert "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub" in text
    assert "hosts.llm-01.ssh.host_key" in text


def test_no_known_hosts_file_is_as_good_as_an_empty_one(sshd: Sshd, tmp_path: Path) -> None:
    with raises("HostKeyUnknown"):
        sshd.wire(host_key=None, known_hosts=tmp_path / "none")


def test_a_changed_host_key_is_refused(sshd: Sshd, tmp_path: Path) -> None:
    keypair(tmp_path / "old")
    kind, key = (tmp_path / "old.pub").read_text().split()[:2]
    path = known(tmp_path, sshd, f"[127.0.0.1]:{{port}} {kind} {key}")
    with raises("HostKeyRefused", match="other than the known one"):
        sshd.wire(host_key=None, known_hosts=path)


def test_of_two_host_keys_the_one_that_is_known_is_asked_for(tmp_path: Path) -> None:
    keypair(tmp_path / "rsa", "-t", "rsa")
    with served(tmp_path, f"HostKey {tmp_path / 'rsa'}") as running:
        wire = running.wire(host_key=(tmp_path / "rsa.pub").read_text())
        assert ask(wire, "echo", 1) == 1
        wire.close()


# ---- what is shown to it


@pytest.fixture
def agent(sshd: Sshd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    started = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout
    for name in ("SSH_AUTH_SOCK", "SSH_AGENT_PID"):
        monkeypatch.setenv(name, re.search(f"{name}=([^;]+)", started)[1])  # type: ignore[index]
    yield
    subprocess.run(["ssh-agent", "-k"], env=dict(os.environ), capture_output=True, timeout=PATIENCE_S)


def test_a_key_of_the_agent_opens(sshd: Sshd, agent: None) -> None:
    with raises("KeyUnusable", match="it has no key"):
        sshd.wire(key=None, agent=True)
    subprocess.run(["ssh-add", "-q", str(sshd.key)], check=True, capture_output=True, timeout=PATIENCE_S)
    wire = sshd.wire(key=None, agent=True)
    assert ask(wire, "echo", 1) == 1
    wire.close()


def test_a_refused_password_is_said_without_it(sshd: Sshd, tmp_path: Path) -> None:
    with raises("KeyRefused") as caught:
        sshd.wire(
            key=None, password=secret(tmp_path, "canary-7d1e"), written_at={"password": "hosts.llm-01.ssh.password"}
        )
    assert isinstance(caught.value, AuthenticationFailed)
    assert "does not accept this password" in error_text(caught.value)
    assert "canary" not in error_text(caught.value)
    assert "hosts.llm-01.ssh.password" in error_text(caught.value)
    assert caught.value.__context__ is None


def test_a_secret_that_is_not_there_is_said_to_be(sshd: Sshd) -> None:
    with raises("SecretUnreadable"):
        sshd.wire(key=None, password=SecretRef("env", "WINHOST_NOT_SET"))


# ---- through another machine


def test_a_host_is_reached_through_its_jump_host(sshd: Sshd, jump: Sshd) -> None:
    wire = sshd.wire(jump=jump.login())
    assert ask(wire, "echo", "far") == "far"
    wire.close()
    assert "direct-tcpip" in jump.log.read_text() or "Accepted publickey" in jump.log.read_text()


def test_each_of_the_two_is_known_by_its_own_key(sshd: Sshd, jump: Sshd) -> None:
    before = sshd.log.read_text().count("Accepted")
    with raises("HostKeyRefused", match="llm-01/jump"):
        sshd.wire(name="llm-01", jump=jump.login(host_key=fingerprint(sshd)))
    assert sshd.log.read_text().count("Accepted") == before
    with raises("HostKeyRefused", match="llm-01 at"):
        sshd.wire(name="llm-01", host_key=fingerprint(jump), jump=jump.login())


def test_a_jump_host_that_forwards_nothing_is_named(sshd: Sshd, tmp_path: Path) -> None:
    with served(tmp_path, "AllowTcpForwarding no") as closed, raises("NotForwarded", match="jump host") as caught:
        sshd.wire(name="llm-01", jump=closed.login())
    assert isinstance(caught.value, Unreachable)
    assert "AllowTcpForwarding yes" in error_text(caught.value)


def test_a_jump_host_that_does_not_reach_it_is_named(sshd: Sshd, jump: Sshd) -> None:
    with raises("NotForwarded", match="jump host"):
        sshd.wire(name="llm-01", port=1, jump=jump.login())


# ---- to a port of it


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server on this computer that gives back what it gets."""

    class Echo(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while data := self.request.recv(1000):
                self.request.sendall(data)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server, running(server):
        yield server.server_address[1]


def test_a_tunnel_carries_both_ways_beside_the_calls(sshd: Sshd, echo: int) -> None:
    wire = sshd.wire()
    sent = bytes(range(256)) * 4000
    with wire.tunnel("127.0.0.1", echo) as through:
        threading.Thread(target=through.sendall, args=(sent,), daemon=True).start()
        assert ask(wire, "echo", "meanwhile") == "meanwhile"
        assert through.makefile("rb").read(len(sent)) == sent
    assert ask(wire, "echo", "after") == "after"
    wire.close()


def test_a_port_without_anybody_and_an_sshd_that_forwards_nothing_are_told(
    sshd: Sshd, tmp_path: Path, echo: int
) -> None:
    wire = sshd.wire()
    with raises("NotTunnelled"):
        wire.tunnel("127.0.0.1", 1)
    assert ask(wire, "echo", 1) == 1
    wire.close()
    with served(tmp_path, "AllowTcpForwarding no") as closed, raises("NotTunnelled") as caught:
        closed.wire().tunnel("127.0.0.1", echo)
    assert "AllowTcpForwarding" in error_text(caught.value)


def test_the_fleet_file_leads_there(sshd: Sshd, jump: Sshd, tmp_path: Path) -> None:
    path = known(tmp_path, jump)
    (tmp_path / "fleet.yaml").write_text(f"""
schema: winhost.fleet/1
hosts:
  llm-01:
    kind: linux
    address: 127.0.0.1
    ssh:
      user: {sshd.target().user}
      port: {sshd.port}
      key: file:{sshd.key}
      host_key: {fingerprint(sshd)}
      sudo: false
      jump: {{address: 127.0.0.1, port: {jump.port}, key: "file:{jump.key}", known_hosts: {path.name}}}
""")
    (host,) = load_fleet(tmp_path / "fleet.yaml").hosts
    assert isinstance(host, LinuxHost)
    target = host
    wire = sshd.wire(**{name: getattr(target, name) for name in ("name", "host_key", "jump", "sudo", "timeouts")})
    assert ask(wire, "echo", 1) == 1
    wire.close()
