"""An sshd that has accepted the key and ends the connection all the same, as one does while its system still boots."""

import io
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import paramiko
from paramiko.common import cMSG_USERAUTH_BANNER

from tests.connect.sshd import keypair
from tests.errors import raises
from tests.processes import PATIENCE_S
from winhost.cli.output import error_text
from winhost.connect.ssh import SshWire
from winhost.connect.wire_errors import AuthenticationFailed, Unreachable
from winhost.lab.physics.ssh_keys import private_text, public_line
from winhost.model.fleet import LinuxHost
from winhost.model.secrets import SecretRef

SEED = b"the key of an sshd that boots"[:32].ljust(32)
# Of pam_nologin, until systemd lets users in; sshd then calls it fatal and says nothing more.
BOOTING = '"System is booting up. Unprivileged users are not permitted to log in yet. \x1b[2J"'


class Starting(paramiko.ServerInterface):  # type: ignore[misc]
    """cuts: it ends the connection, instead of refusing the key."""

    def __init__(self, transport: paramiko.Transport, cuts: bool) -> None:
        self._transport, self._cuts = transport, cuts

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: Any) -> int:
        if self._cuts:
            said = paramiko.Message()
            said.add_byte(cMSG_USERAUTH_BANNER)
            said.add_string(BOOTING)
            said.add_string("")
            self._transport._send_message(said)
            self._transport.close()
        return int(paramiko.AUTH_FAILED)


@contextmanager
def sshd(cuts: bool) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            line, _ = listening.accept()
            with closing(paramiko.Transport(line)) as transport, suppress(EOFError, OSError, paramiko.SSHException):
                transport.add_server_key(paramiko.Ed25519Key.from_private_key(io.StringIO(private_text(SEED))))
                transport.start_server(server=Starting(transport, cuts))
                transport.join(PATIENCE_S)

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield listening.getsockname()[1]
        serving.join(PATIENCE_S)


def target(port: int, key: Path) -> LinuxHost:
    return LinuxHost(
        name="gpu-03/llm-02",
        address="127.0.0.1",
        port=port,
        user="winhost",
        host_key=public_line(SEED),
        key=SecretRef("file", str(keypair(key))),
    )


def test_a_logon_that_is_cut_is_waited_out_and_said_in_the_words_of_the_machine(tmp_path: Path) -> None:
    with sshd(cuts=True) as port, raises("NoShell") as caught:
        SshWire(target(port, tmp_path / "key"), "")
    assert isinstance(caught.value, Unreachable)  # which is tried again where a machine may still be starting
    text = error_text(caught.value)
    assert "closed the connection while user winhost logged on" in text
    assert "System is booting up. Unprivileged users are not permitted to log in yet." in text
    assert "\x1b" not in text


def test_a_key_that_is_refused_is_not(tmp_path: Path) -> None:
    with sshd(cuts=False) as port, raises("KeyRefused") as caught:
        SshWire(target(port, tmp_path / "key"), "")
    assert isinstance(caught.value, AuthenticationFailed)
