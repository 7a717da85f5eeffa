"""An SSH server on loopback for the Linux of a simulated host. It only runs winhost's own programs."""

from __future__ import annotations

import io
import json
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Protocol, Self

import paramiko  # type: ignore[import-untyped]

from winhost.lab.physics.host_state import HostDown
from winhost.lab.physics.ssh_keys import private_text
from winhost.resources.linux.linux_scripts import boot_text, probe_text, serving_text, session_text
from winhost.web.server import run_server

log = logging.getLogger(__name__)

_PYTHON = b"exec python3 -I -c "  # starts a program, whose text is the first line of input
_SUDO = b"exec env LC_ALL=C sudo -n -- python3 -I -c "  # the same for users other than root, without a password
_KEEPALIVE_S = 5.0  # between empty lines while a call runs
_TIMEOUT_S = 30.0


class SshServer(Protocol):
    """A running SSH server."""

    @property
    def user(self) -> str: ...

    @property
    def seed(self) -> bytes:
        """The seed of its host key."""

    @property
    def authorized(self) -> Sequence[str]:
        """The public keys that it accepts, as in .pub files."""

    def invoke(self, request: str, *, program: str = "agent") -> str:
        """Answer a request to the agent, or to the program of another command. Raises HostDown."""

    def connect(self, address: str, port: int) -> socket.socket | None:
        """Return a connection to an address inside the Linux; None if nothing listens. Raises HostDown."""


class SshHost(Protocol):
    def find_sshd(self) -> SshServer | None:
        """Return the running SSH server, or None."""


class SshEndpoint(socketserver.ThreadingTCPServer):
    """Serves the Linux of one simulated host to real clients on a free port, while it is open.

    answers_to_lose: how many of the next answers are dropped, together with their connection; gateway_address: of a
    real gateway on this computer, which gets the connections to the simulated one.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, host: SshHost) -> None:
        self.host = host
        self.answers_to_lose = 0
        self.gateway_address: tuple[str, int] | None = None
        self._transports: list[paramiko.Transport] = []
        self._while_open = ExitStack()
        # paramiko logs a traceback for each client that only checks whether the port is open.
        logging.getLogger("paramiko").setLevel(logging.CRITICAL)
        super().__init__(("127.0.0.1", 0), _Connection)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def __enter__(self) -> Self:
        self._while_open.callback(self.close_connections)
        self._while_open.callback(self.server_close)
        self._while_open.enter_context(run_server(self))
        return self

    def __exit__(self, *_: object) -> None:
        self._while_open.close()

    def verify_request(self, request: object, client_address: object) -> bool:
        return self.host.find_sshd() is not None

    def handle_error(self, request: object, client_address: object) -> None:
        log.debug("a connection ended badly", exc_info=True)

    def add_transport(self, transport: paramiko.Transport) -> None:
        self._transports = [*(each for each in self._transports if each.is_active()), transport]

    def close_connections(self) -> None:
        for transport in self._transports:
            transport.close()


class _Connection(socketserver.BaseRequestHandler):
    server: SshEndpoint

    def handle(self) -> None:
        sshd = self.server.host.find_sshd()
        if sshd is None:
            return
        transport = paramiko.Transport(self.request)
        try:
            transport.add_server_key(paramiko.Ed25519Key.from_private_key(io.StringIO(private_text(sshd.seed))))
            self.server.add_transport(transport)
            logon = _Logon(sshd, self.server)
            transport.start_server(server=logon)
            channel = _wait_for(transport, transport.accept)
            threading.Thread(target=_serve_tunnels, args=(transport, logon), daemon=True).start()
            if channel is not None and _wait_for(transport, logon.requested.wait):
                _serve(channel, logon.command, sshd, self.server)
        except (HostDown, EOFError, OSError, paramiko.SSHException):
            return  # the client or the host is gone
        finally:
            transport.close()


class _Logon(paramiko.ServerInterface):  # type: ignore[misc]
    """Accepts only keys, one command, and connections to addresses inside the Linux. tunnels: by channel id."""

    def __init__(self, sshd: SshServer, endpoint: SshEndpoint) -> None:
        self._sshd = sshd
        self._endpoint = endpoint
        self.tunnels: dict[int, socket.socket] = {}
        self.requested = threading.Event()
        self.command = b""

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: Any) -> int:
        offered = [key.get_name(), key.get_base64()]
        lets_in = any(line.split()[:2] == offered for line in self._sshd.authorized)
        is_accepted = username == self._sshd.user and lets_in
        return int(paramiko.AUTH_SUCCESSFUL if is_accepted else paramiko.AUTH_FAILED)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        session = kind == "session"
        return int(paramiko.OPEN_SUCCEEDED if session else paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED)

    def check_channel_direct_tcpip_request(self, chanid: int, origin: object, destination: tuple[str, int]) -> int:
        try:
            connection = self._sshd.connect(*destination)
        except HostDown:
            connection = None
        if connection is None:
            return int(paramiko.OPEN_FAILED_CONNECT_FAILED)
        if self._endpoint.gateway_address is not None:
            connection.close()
            connection = socket.create_connection(self._endpoint.gateway_address, timeout=_TIMEOUT_S)
            connection.settimeout(None)
        self.tunnels[chanid] = connection
        return int(paramiko.OPEN_SUCCEEDED)

    def check_channel_exec_request(self, channel: Any, command: bytes) -> bool:
        self.command = command
        self.requested.set()
        return True


def _wait_for(transport: paramiko.Transport, wait: Callable[[float], Any]) -> Any:
    """Call `wait` until it returns a result, the connection ends, or the timeout has passed."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not (result := wait(0.1)) and transport.is_active() and time.monotonic() < deadline:
        pass
    return result


def _serve_tunnels(transport: paramiko.Transport, logon: _Logon) -> None:
    """Forward the connections of tunnels until the SSH connection ends."""
    while transport.is_active():
        channel = transport.accept(1)
        if channel is not None and channel.get_id() in logon.tunnels:
            target = logon.tunnels.pop(channel.get_id())
            for source, sink in ((channel, target), (target, channel)):
                threading.Thread(target=_forward, args=(source, sink), daemon=True).start()


def _forward(source: Any, sink: Any) -> None:
    with suppress(OSError, EOFError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError, EOFError):
            end.shutdown(socket.SHUT_RDWR)
        with suppress(OSError, EOFError):
            end.close()


def _serve(channel: Any, command: bytes, sshd: SshServer, endpoint: SshEndpoint) -> None:
    """Answer requests, one per line, until the client leaves."""
    lines = channel.makefile("rb")
    if command.startswith(_SUDO) and sshd.user != "root":
        channel.sendall(command.rpartition(b" ")[2] + b"\n")  # the program's ready token
    elif not command.startswith(_PYTHON):
        return
    program = json.loads(lines.readline() or "null")
    programs = {session_text(): "agent", probe_text(): "probe", serving_text(): "serving", boot_text(): "boot"}
    if program not in programs:
        channel.sendall_stderr(b"The lab knows only this winhost's agent.\n")
        return
    while line := lines.readline():
        answer = _answer(channel, line.decode("ascii"), sshd, programs[program])
        if endpoint.answers_to_lose:
            endpoint.answers_to_lose -= 1
            return
        channel.sendall(answer.encode("ascii") + b"\n")


def _answer(channel: Any, request: str, sshd: SshServer, program: str) -> str:
    """Return the answer. Until then, send empty lines to keep the connection alive, as the agent does."""
    done = threading.Event()

    def beat() -> None:
        with suppress(OSError):
            while not done.wait(_KEEPALIVE_S):
                channel.sendall(b"\n")

    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    try:
        return sshd.invoke(request, program=program)
    finally:
        done.set()
        beating.join(_TIMEOUT_S)
