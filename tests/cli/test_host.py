"""winhost host on simulated hosts, with a password typed at a terminal, and in scripts."""

import json
import os
import re
import shlex
import socket
import socketserver
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.cli.conftest import Line
from tests.errors import raises
from tests.processes import PATIENCE_S, exit_code
from winhost.cli.host import add as host_add
from winhost.cli.host import check as host_check
from winhost.cli.host.add import add_host
from winhost.cli.host.commands import NewHost
from winhost.cli.named_hosts import resolve_account
from winhost.connect.ssh_logon import no_sshd_error
from winhost.connect.wire_errors import Failure
from winhost.lab.hostfile import find
from winhost.lab.running_lab import ALL_HOSTS, USER, Lab
from winhost.model.fleet import Host, LinuxHost, load_fleet
from winhost.model.secrets import Secret, TypedSecret
from winhost.web.server import run_server

LINUX = Path(__file__).parents[2] / "examples/linux/ubuntu-2xh100.json"


@pytest.fixture
def desk(lab: Lab) -> Host:
    """A host of the lab's own fleet.yaml; the test writes another file."""
    (host,) = (each for each in load_fleet(lab.fleet_file).hosts if each.name == "desk-01")
    assert isinstance(host, Host)
    return host


def account(host: Host) -> tuple[str, ...]:
    return f"LAB\\admin@{host.address}", "--port", str(host.transport.port), "--name", "mine", "--fleet", "mine.yaml"


def test_a_host_is_added_tested_listed_and_removed(line: Line, lab: Lab, desk: Host) -> None:
    assert desk.transport.password
    said = line("host", "add", *account(desk), "--group", "desks", "--password", desk.transport.password.written)
    assert said.code == 0, said.err
    assert said.out.splitlines()[-1] == "  winhost up --on mine --fleet mine.yaml"
    assert line("assess", "mine", "--fleet", "mine.yaml").code in (0, 3)
    (listed,) = line("host", "list", "--fleet", "mine.yaml", "--json").results
    assert (listed["host"], listed["groups"], listed["user"]) == ("mine", ["desks"], "LAB\\admin")
    tested = line("host", "test", "--fleet", "mine.yaml", "--json").result
    assert tested["ready"]
    assert {each["step"]: each["works"] for each in tested["steps"]} == dict.fromkeys(
        ("name", "port", "logon", "session", "administrator", "PowerShell"), True
    )
    assert line("host", "add", *account(desk), "--password", "env:X").code == 2  # it is there
    assert line("host", "remove", "mine", "--fleet", "mine.yaml").code == 2  # nobody confirms
    assert line("host", "remove", "mine", "--yes", "--fleet", "mine.yaml").code == 0
    assert line("host", "list", "--fleet", "mine.yaml", "--json").results == []


def test_a_host_of_ipv6_is_added_read_and_meant_by_its_account(line: Line, tmp_path: Path) -> None:
    with (
        Lab([find("win11-pro-1gpu")], tmp_path, scale=0.001) as lab,
        on_ipv6(next(iter(lab.endpoints.values())).port) as port,
    ):
        account = f"{USER}@[::1]:{port}"
        words = ("--password", f"file:{lab.folder}/password", "--fleet", "mine.yaml")
        said = line("host", "add", account, *words)
        assert said.code == 0, said.err
        assert said.out.splitlines()[-1] == "  winhost up --on 0--1 --fleet mine.yaml"
        assert line("assess", "0--1", "--fleet", "mine.yaml").code in (0, 3)
        for text in (account, f"{USER}@0--1:{port}"):
            assert resolve_account(text, Path("mine.yaml")).name == "0--1"
        assert "0--1 (::1)" in line("host", "test", "--fleet", "mine.yaml").out
    for text in ("admin@::1", "admin@[::1]:x", "admin@[zz::1]"):
        said = line("host", "add", text, *words)
        assert (said.code, "'USER@[ADDRESS]'" in said.err) == (2, True), said.err


def test_up_without_a_terminal_leads_to_a_command_that_takes_the_password(
    line: Line, lab: Lab, desk: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(line.folder))
    monkeypatch.setenv("NAME", (lab.folder / "password").read_text())
    said = line("up", "--on", f"{USER}@{desk.address}:{desk.transport.port}", "--fleet", "other.yaml")
    assert said.code == 2
    command = shlex.split(re.sub(r"\s+", " ", said.err).partition("SERVICE/USER: winhost ")[2])
    assert line(*command, "--fleet", "other.yaml").code == 0


KEY_LINE = '"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"'


@contextmanager
def on_ipv6(port: int) -> Iterator[int]:
    """Listen at ::1 as well as at 127.0.0.1, on another port."""

    class Passed(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", port)) as there:
                back = threading.Thread(target=_passed, args=(there, self.request), daemon=True)
                back.start()
                _passed(self.request, there)
                back.join(PATIENCE_S)

    class Server(socketserver.ThreadingTCPServer):
        address_family, daemon_threads, block_on_close = socket.AF_INET6, True, False

    with Server(("::1", 0), Passed) as server, run_server(server):
        yield server.server_address[1]


def _passed(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def test_what_fails_is_named_and_nothing_is_written(
    line: Line, lab: Lab, desk: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG", "Canary-of-a-password")
    said = line("host", "add", *account(desk), "--password", "env:WRONG")
    assert said.code == 5
    assert "✗ logon" in said.out
    assert "✓ port" in said.out
    assert "Canary" not in said.out + said.err
    assert not Path("mine.yaml").exists()
    lab.endpoints["desk-01"].stop()
    said = line("host", "test", "desk-01")
    assert said.code == 5
    assert "✗ port" in said.out
    assert "- logon          not tried" in said.out


def test_a_linux_without_a_running_ssh_server_is_told_how_to_start_it(line: Line) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    ssh = f"{{port: {port}, user: root, password: 'env:HOME', host_key: {KEY_LINE}}}"
    Path("fleet.yaml").write_text(
        f"schema: winhost.fleet/1\nhosts:\n  llm-01: {{kind: linux, address: 127.0.0.1, ssh: {ssh}}}\n", "utf-8"
    )
    tested = line("host", "test", "llm-01")
    assert (tested.code, "sshd listens at that port" in tested.out) == (5, True), tested.out
    added = line("host", "add", f"root@127.0.0.1:{port}", "--linux")
    assert (added.code, "systemctl enable --now ssh" in added.err) == (5, True), added.err
    for said in (tested.out, added.err):
        assert "PowerShell" not in said
    usual = no_sshd_error("llm-01", "Connection refused", endpoint="10.0.0.5 port 22", failure=Failure.REFUSED)
    assert "systemctl enable --now ssh" in str(usual.hint)


def test_a_certificate_is_checked_against_the_ca_that_is_named(line: Line, tmp_path: Path) -> None:
    with Lab([find("win11-pro-1gpu")], tmp_path, scale=0.001, tls=ALL_HOSTS) as lab:
        (host,) = load_fleet(lab.fleet_file).hosts
        assert isinstance(host, Host)
        assert host.transport.password
        words = ("host", "add", *account(host), "--password", host.transport.password.written)
        said = line(*words)
        assert said.code == 5
        assert "✗ TLS" in said.out
        assert "--ca PATH" in said.out
        assert line(*words, "--ca", host.transport.verify).code == 0
        assert "✓ TLS" in line("host", "test", "mine", "--fleet", "mine.yaml").out


def test_who_is_no_administrator_and_a_restricted_powershell_are_not_ready(desk: Host) -> None:
    session = {
        "user": "DESK\\o'neil",
        "administrator": False,
        "language_mode": "ConstrainedLanguage",
        "powershell": "5.1",
    }
    administrator, powershell = host_check.session_rights(session, is_local=False)
    assert (administrator.works, "'DESK\\o''neil'" in (administrator.do or "")) == (False, True)
    administrator, _ = host_check.session_rights({"administrator": {"unknown": {}}}, is_local=False)
    assert administrator.works is None
    assert (powershell.works, "needs FullLanguage" in powershell.found) == (False, True)


def test_a_linux_is_known_by_the_key_that_was_confirmed(line: Line, tmp_path: Path) -> None:
    with Lab([LINUX], tmp_path, scale=0.001) as lab:
        (host,) = load_fleet(lab.fleet_file).hosts
        assert isinstance(host, LinuxHost)
        words = ("host", "add", f"root@{host.address}", "--linux", "--port", host.port, "--name", "llm")
        words = (*words, "--key", f"{lab.folder}/ssh-key", "--fleet", "mine.yaml")
        said = line(*words)
        assert said.code == 2
        shown = said.err.partition("--host-key ")[2].split()[0]
        assert line(*words, "--host-key", "SHA256:" + "A" * 43).code == 2
        said = line(*words, "--host-key", shown)
        assert said.code == 0, said.err
        (added,) = load_fleet(Path("mine.yaml")).hosts
        assert isinstance(added, LinuxHost)
        assert added.host_key == host.host_key
        assert line("host", "test", "llm", "--fleet", "mine.yaml").code == 0


@pytest.mark.costly
def test_a_password_is_typed_and_goes_to_the_keyring_alone(lab: Lab, desk: Host, tmp_path: Path) -> None:
    """The terminal is real, and the keyring is a stand-in that writes to a file."""
    import pty

    assert desk.transport.password
    password = desk.transport.password.resolve().reveal()
    (tmp_path / "keyring.py").write_text(
        "from types import SimpleNamespace\n"
        "def get_keyring(): return SimpleNamespace(priority=5)\n"
        "def set_password(*words):\n"
        f"    open({str(tmp_path / 'kept')!r}, 'w').write('%s/%s %s' % words)\n"
    )
    child, main = pty.fork()
    if child == 0:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "200", "NO_COLOR": "1"}
        os.chdir(tmp_path)
        words = ("host", "add", *account(desk))
        os.execve(sys.executable, [sys.executable, "-m", "winhost", *words], environment)
    text, answers = "", {"127.0.0.1: ": password, "[Y/n]: ": "y"}
    try:
        while got := os.read(main, 65536).decode():
            text += got
            for question in [each for each in answers if text.rstrip("\r\n").endswith(each)]:
                os.write(main, answers.pop(question).encode() + b"\n")
    except OSError:
        pass  # it has ended
    os.close(main)
    assert exit_code(child) == 0, text
    assert password not in text
    assert (tmp_path / "kept").read_text() == f"winhost/mine {password}"
    file = (tmp_path / "mine.yaml").read_text()
    assert "password: keyring:winhost/mine" in file
    assert password not in file
    assert not stat.S_IMODE((tmp_path / "mine.yaml").stat().st_mode) & 0o077


def test_without_a_keyring_the_file_refers_to_a_variable(
    line: Line, lab: Lab, desk: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert desk.transport.password
    typed = TypedSecret("typed", "password", Secret(desk.transport.password.resolve().reveal()))
    monkeypatch.setattr(host_add, "_prompt_for_password", lambda question, new: typed)
    monkeypatch.setitem(sys.modules, "keyring", None)
    new = NewHost(f"LAB\\admin@{desk.address}", "mine-2", port=desk.transport.port)
    added = add_host(new, Path("mine.yaml"))
    assert isinstance(added.host, Host)
    assert added.host.transport.password is typed  # the variable is not set in this process
    assert "password: env:MINE_2_PASSWORD" in Path("mine.yaml").read_text("utf-8")
    monkeypatch.setattr("click.confirm", lambda *_, **__: False)
    used = add_host(NewHost(new.account, "once", port=new.port), Path("mine.yaml"), ask_to_add=True)
    assert used.file is None
    assert isinstance(used.host, Host)
    assert used.host.transport.password == typed
    assert "once" not in Path("mine.yaml").read_text()


def test_a_keyring_that_refuses_is_told_without_the_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keyring = ModuleType("keyring")
    keyring.get_keyring = lambda: SimpleNamespace(priority=1)  # type: ignore[attr-defined]

    def refuse(service: str, user: str, value: str) -> None:
        raise ValueError(value)

    keyring.set_password = refuse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    monkeypatch.setattr("click.confirm", lambda *_, **__: True)
    assert host_add._store_password(TypedSecret("typed", "password", Secret("Canary")), "mine") == "env:MINE_PASSWORD"
    told = capsys.readouterr().err
    assert ("The password is not kept: the keyring refused (ValueError)." in told, "Canary" in told) == (True, False)


@pytest.mark.parametrize(
    "word", ["me", "@10.0.0.5", "me@@host", "me@", "me@a b", "me@[::1", "me@host:x", "me@host:0", "me@host:70000"]
)
def test_what_is_no_account_is_told(word: str) -> None:
    with raises("NotAnAccount"):
        add_host(NewHost(word), Path("mine.yaml"))
    with raises("UnfitName") as caught:
        add_host(NewHost("me@-host"), Path("mine.yaml"))
    assert "--name" in (caught.value.hint or "")


def test_a_document_has_no_secret(line: Line, lab: Lab) -> None:
    said = line("host", "list", "--json")
    assert said.code == 0
    assert (lab.folder / "password").read_text() not in json.dumps(said.json)
