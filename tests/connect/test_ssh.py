"""The wire to Linux, against a real sshd: what comes through, what is refused, and what is lost."""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.connect.sshd import Sshd, free_port, keypair, served
from tests.errors import raises
from tests.processes import PATIENCE_S, wait_for
from winhost.cli.output import error_text
from winhost.connect.host_keys import HostKeyRefused
from winhost.connect.ssh import SshWire
from winhost.connect.wire_errors import AuthenticationFailed, SessionDropped, TimedOut, Unreachable, WireError
from winhost.model.secrets import SecretRef
from winhost.resources.linux.linux_scripts import session_text

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with served(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def wire(sshd: Sshd) -> Iterator[SshWire]:
    opened = sshd.wire()
    yield opened
    opened.close()


def ask(wire: SshWire, do: str, what: Any = None, within: float = PATIENCE_S) -> Any:
    return json.loads(wire.invoke(json.dumps([do, what]), within))["answers"][0]


# ---- what comes through


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.text() | st.dictionaries(st.text(), st.text()))
def test_any_value_comes_through_and_back(wire: SshWire, value: Any) -> None:
    assert ask(wire, "echo", value) == value


def test_a_long_value_comes_through(wire: SshWire) -> None:
    assert ask(wire, "echo", "ä" * 600_000) == "ä" * 600_000


def test_the_agent_answers_through_it(sshd: Sshd) -> None:
    agent = sshd.connector(session_text()).open()
    state = agent.get("LinuxSystem", {}) or {}
    agent.close()
    assert state["kernel"] == os.uname().release


def test_one_session_is_one_process(sshd: Sshd) -> None:
    agent = sshd.connector(session_text()).open()
    before = sshd.log.read_text().count("Starting session")
    for _ in range(3):
        agent.get("LinuxSystem", {})
    agent.close()
    assert sshd.log.read_text().count("Starting session") == before
    assert "Starting session: command for" in sshd.log.read_text()


def test_a_shell_that_starts_slowly_is_waited_for(tmp_path: Path) -> None:
    slow = 'ForceCommand sleep 2; exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"'
    with served(tmp_path, slow) as running:
        wire = running.wire()
        assert ask(wire, "echo", "late") == "late"
        wire.close()


def test_signs_of_life_keep_a_call_that_outlasts_the_silence_allowed(sshd: Sshd) -> None:
    wire = sshd.wire()
    assert ask(wire, "echo", 1) == 1  # Python gives no sign while it starts, and a busy machine takes long for that
    wire._target = wire._target.model_copy(update={"operation_timeout": 3})
    assert ask(wire, "beat", 17) == 17
    wire.close()


def test_a_key_with_a_passphrase_opens_with_it(sshd: Sshd, tmp_path: Path) -> None:
    wire = sshd.wire(key=locked(sshd, tmp_path), passphrase=secret(tmp_path, "the passphrase"))
    assert ask(wire, "echo", 1) == 1
    wire.close()


def locked(sshd: Sshd, folder: Path) -> SecretRef:
    key = keypair(folder / "locked", "-N", "the passphrase")
    with (sshd.folder / "authorized").open("a") as authorized:
        authorized.write((folder / "locked.pub").read_text())
    return SecretRef("file", str(key))


def secret(folder: Path, text: str) -> SecretRef:
    path = folder / "secret"
    path.write_text(text)
    path.chmod(0o600)
    return SecretRef("file", str(path))


# ---- what is refused


def test_another_host_key_is_refused_before_our_key_is_offered(sshd: Sshd, tmp_path: Path) -> None:
    keypair(tmp_path / "other")
    before = sshd.log.read_text()
    with pytest.raises(HostKeyRefused) as caught:
        sshd.wire(host_key=(tmp_path / "other.pub").read_text())
    said = sshd.log.read_text()[len(before) :]
    assert "publickey" not in said
    assert "Accepted" not in said
    text = error_text(caught.value)
    assert "SHA256:" in text
    assert "Your key was not offered to it" in text
    assert caught.value.exit_code == 5


def test_a_host_key_of_another_kind_is_refused(sshd: Sshd, tmp_path: Path) -> None:
    keypair(tmp_path / "other", "-t", "ecdsa")
    with pytest.raises(HostKeyRefused):
        sshd.wire(host_key=(tmp_path / "other.pub").read_text())


def test_another_key_of_ours_is_refused_by_the_machine(sshd: Sshd, tmp_path: Path) -> None:
    other = SecretRef("file", str(keypair(tmp_path / "other")))
    with raises("KeyRefused") as caught:
        sshd.wire(key=other, written_at={"key": "hosts.gpu-03.wsl.key (fleet.yaml:9)"})
    assert isinstance(caught.value, AuthenticationFailed)
    assert "fleet.yaml:9" in error_text(caught.value)
    assert caught.value.__context__ is None


CANARY = "canary-5f3c"
KEYS = {
    "no key at all": CANARY,
    "a key cut short": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{CANARY}\n",
}


@pytest.mark.parametrize("text", KEYS.values(), ids=KEYS.keys())
def test_what_is_no_key_is_said_and_not_shown(sshd: Sshd, tmp_path: Path, text: str) -> None:
    with raises("KeyUnusable", match="it is no private key") as caught:
        sshd.wire(key=secret(tmp_path, text))
    assert CANARY not in error_text(caught.value)
    assert caught.value.__context__ is None


def test_a_missing_passphrase_and_a_wrong_one_are_said(sshd: Sshd, tmp_path: Path) -> None:
    key = locked(sshd, tmp_path)
    with raises("KeyUnusable", match="it needs a passphrase"):
        sshd.wire(key=key)
    with raises("KeyUnusable", match="or the passphrase is not its own"):
        sshd.wire(key=key, passphrase=secret(tmp_path, "another"))


@pytest.mark.parametrize(
    "text", ["", "ssh-ed25519", "ssh-ed25519 !!!", "ssh-ed25519 AAAA", "ssh-new AAAA", "x\x1b[2J y"]
)
def test_a_host_key_that_is_none_is_said(sshd: Sshd, text: str) -> None:
    with raises("KeyUnusable", match="the host key for gpu-03/ubuntu"):
        sshd.wire(host_key=text)


def test_a_closed_port_is_unreachable(sshd: Sshd) -> None:
    with raises("NotThere") as caught:
        sshd.wire(port=free_port())
    assert isinstance(caught.value, Unreachable)
    assert "Enable-PSRemoting" not in error_text(caught.value)


SERVICES = {"silent": b"", "a page": b"HTTP/1.1 400 Bad Request\r\n\r\n", "ends at once": None}


@pytest.mark.parametrize("says", SERVICES.values(), ids=SERVICES.keys())
def test_a_service_that_is_no_ssh_opens_no_session(sshd: Sshd, says: bytes | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                if says is not None:
                    connection.sendall(says)
                    while connection.recv(4096):
                        pass

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with raises("NoShell"):
            sshd.wire(port=listening.getsockname()[1], connect_timeout=1)
        thread.join(PATIENCE_S)


def test_a_machine_without_python_opens_no_session(tmp_path: Path) -> None:
    with served(tmp_path, "SetEnv PATH=/nowhere") as running:
        wire = running.wire()
        with raises("NoShell", match=r"python3|No such file"):
            ask(wire, "echo", 1)


def test_a_machine_that_is_not_taking_orders_opens_no_session(tmp_path: Path) -> None:
    with served(tmp_path, "MaxSessions 0") as running, raises("NoShell"):
        running.wire()


# ---- what is lost


def test_what_was_asked_is_done_though_the_connection_is_cut_and_is_settled_by_looking(
    sshd: Sshd, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    wire = sshd.wire()

    def cut() -> None:
        wait_for((tmp_path / "flag.begun").exists)
        sshd.cut()

    cutting = threading.Thread(target=cut)
    cutting.start()
    with pytest.raises(SessionDropped) as caught:
        ask(wire, "until", str(flag))
    cutting.join(PATIENCE_S)
    assert "may have been carried out" in error_text(caught.value)
    assert not (tmp_path / "flag.done").exists()
    flag.touch()
    wait_for((tmp_path / "flag.done").exists)


def test_a_wire_that_was_cut_stays_cut(sshd: Sshd, wire: SshWire) -> None:
    ask(wire, "echo", 1)
    sshd.cut()
    for _ in range(2):
        with pytest.raises(SessionDropped):
            ask(wire, "echo", 2)


def test_an_answer_that_is_late_is_never_taken_for_the_next_one(wire: SshWire) -> None:
    ask(wire, "echo", 1)
    with pytest.raises(TimedOut, match=r"no answer after 0 s"):
        ask(wire, "silence", 0.5, within=0.1)
    with pytest.raises(SessionDropped):
        ask(wire, "echo", 2)


def test_silence_is_told_from_slowness(sshd: Sshd) -> None:
    wire = sshd.wire(operation_timeout=1)
    with pytest.raises(TimedOut, match="no sign of life for 1 s"):
        ask(wire, "silence", 4, within=100)


def test_a_clock_that_is_set_meanwhile_is_no_silence(wire: SshWire, monkeypatch: pytest.MonkeyPatch) -> None:
    """paramiko measures with it. A laptop that wakes sets it by hours."""
    clock = itertools.count(time.time(), 3600)
    monkeypatch.setattr("paramiko.buffered_pipe.time.time", lambda: next(clock))
    assert ask(wire, "silence", 0.2) == 0.2
    assert next(clock) > time.monotonic()


def test_a_program_that_ends_says_why(wire: SshWire) -> None:
    with pytest.raises(SessionDropped, match="exit code 3: said on the way"):
        ask(wire, "exit", 3)


@pytest.mark.parametrize("noise", ["Welcome to Ubuntu", "{}", "\x1b[2J"])
def test_noise_is_no_answer_and_ends_the_session(wire: SshWire, noise: str) -> None:
    with pytest.raises(SessionDropped, match="no answer") as caught:
        ask(wire, "noise", noise)
    assert "\x1b" not in error_text(caught.value)
    with pytest.raises(WireError):
        ask(wire, "echo", 1)


def test_who_breaks_off_leaves_no_connection(sshd: Sshd, tmp_path: Path) -> None:
    wire = sshd.wire()

    def interrupt() -> None:
        wait_for((tmp_path / "flag.begun").exists)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        ask(wire, "until", str(tmp_path / "flag"))
    wait_for(lambda: sshd.sessions() == [])
    (tmp_path / "flag").touch()
    wait_for((tmp_path / "flag.done").exists)


def test_its_library_comes_without_what_we_never_use() -> None:
    names = "'invoke', 'asyncio', 'unittest.mock'"
    program = "import sys; from winhost.connect.ssh_logon import load_paramiko; load_paramiko(); "
    program += f"assert 'paramiko' in sys.modules; print([name for name in ({names}) if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout == "[]\n"
