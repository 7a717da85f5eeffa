"""An SSH server on loopback, before the Linux of a simulated host: it runs the agent's protocol and nothing else."""

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
from winhost.web.served import served

log = logging.getLogger(__name__)

_PYTHON = b"exec python3 -I -c "  # how the agent's program is started; it comes as the first line of input
_SUDO = b"exec env LC_ALL=C sudo -n -- python3 -I -c "  # of whoever is not root, and needs no password for it
_BEAT_S = 5.0  # between signs of life while a call runs
_PATIENCE_S = 30.0


class SshServer(Protocol):
    """sshd as it runs now."""

    @property
    def user(self) -> str: ...

    @property
    def seed(self) -> bytes:
        """The seed of the host key that it shows."""

    @property
    def authorized(self) -> Sequence[str]:
        """Public keys that it lets in, as in a .pub file."""

    def invoke(self, request: str, *, program: str = "agent") -> str:
        """Return the answer of the agent, or of the program of `winhost probe` or `winhost serve`. Raises HostDown."""

    def connect(self, address: str, port: int) -> socket.socket | None:
        """A connection from within; None where nobody listens. Raises HostDown."""


class SshHost(Protocol):
    def find_sshd(self) -> SshServer | None:
        """The SSH server; None while there is none."""


class SshEndpoint(socketserver.ThreadingTCPServer):
    """Serves the Linux of one simulated host to real clients on a free port, while it is open.

    lose: so many answers more are made and then lost, with their connection; real: where a real gateway listens on this
    computer, which gets the connections to the simulated one.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, host: SshHost) -> None:
        self.host = host
        self.lose = 0
        self.real: tuple[str, int] | None = None
        self._transports: list[paramiko.Transport] = []
        self._while_open = ExitStack()
        # It prints a traceback for each visitor who only looks whether the port is open, as `winhost host test` does.
        logging.getLogger("paramiko").setLevel(logging.CRITICAL)
        super().__init__(("127.0.0.1", 0), _Connection)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def __enter__(self) -> Self:
        self._while_open.callback(self.close_connections)
        self._while_open.callback(self.server_close)
        self._while_open.enter_context(served(self))
        return self

    def __exit__(self, *_: object) -> None:
        self._while_open.close()

    def verify_request(self, request: object, client_address: object) -> bool:
        return self.host.find_sshd() is not None

    def handle_error(self, request: object, client_address: object) -> None:
        log.debug("a connection ended badly", exc_info=True)

    def opened(self, transport: paramiko.Transport) -> None:
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
            self.server.opened(transport)
            logon = _Logon(sshd, self.server)
            transport.start_server(server=logon)
            channel = _within(transport, transport.accept)
            threading.Thread(target=_tunnels, args=(transport, logon), daemon=True).start()
            if channel is not None and _within(transport, logon.asked.wait):
                _serve(channel, logon.command, sshd, self.server)
        except (HostDown, EOFError, OSError, paramiko.SSHException):
            return  # either way there is nobody left to answer
        finally:
            transport.close()


class _Logon(paramiko.ServerInterface):  # type: ignore[misc]
    """Keys only, one command only, and connections to what listens within. tunnels: by the ids of their channels."""

    def __init__(self, sshd: SshServer, endpoint: SshEndpoint) -> None:
        self._sshd = sshd
        self._endpoint = endpoint
        self.tunnels: dict[int, socket.socket] = {}
        self.asked = threading.Event()
        self.command = b""

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: Any) -> int:
        offered = [key.get_name(), key.get_base64()]
        lets_in = any(line.split()[:2] == offered for line in self._sshd.authorized)
        good = username == self._sshd.user and lets_in
        return int(paramiko.AUTH_SUCCESSFUL if good else paramiko.AUTH_FAILED)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        session = kind == "session"
        return int(paramiko.OPEN_SUCCEEDED if session else paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED)

    def check_channel_direct_tcpip_request(self, chanid: int, origin: object, destination: tuple[str, int]) -> int:
        try:
            found = self._sshd.connect(*destination)
        except HostDown:
            found = None
        if found is None:
            return int(paramiko.OPEN_FAILED_CONNECT_FAILED)
        if self._endpoint.real is not None:
            found.close()
            found = socket.create_connection(self._endpoint.real, timeout=_PATIENCE_S)
            found.settimeout(None)
        self.tunnels[chanid] = found
        return int(paramiko.OPEN_SUCCEEDED)

    def check_channel_exec_request(self, channel: Any, command: bytes) -> bool:
        self.command = command
        self.asked.set()
        return True


def _within(transport: paramiko.Transport, wait: Callable[[float], Any]) -> Any:
    """Wait no longer than the connection lasts: paramiko wakes nobody when it ends."""
    until = time.monotonic() + _PATIENCE_S
    while not (found := wait(0.1)) and transport.is_active() and time.monotonic() < until:
        pass
    return found


def _tunnels(transport: paramiko.Transport, logon: _Logon) -> None:
    """Serve tunnels until the connection ends."""
    while transport.is_active():
        channel = transport.accept(1)
        if channel is not None and channel.get_id() in logon.tunnels:
            within = logon.tunnels.pop(channel.get_id())
            for source, sink in ((channel, within), (within, channel)):
                threading.Thread(target=_pass_on, args=(source, sink), daemon=True).start()


def _pass_on(source: Any, sink: Any) -> None:
    with suppress(OSError, EOFError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError, EOFError):
            end.shutdown(socket.SHUT_RDWR)
        with suppress(OSError, EOFError):
            end.close()


def _serve(channel: Any, command: bytes, sshd: SshServer, endpoint: SshEndpoint) -> None:
    """Answer requests, a line each, until the client leaves."""
    lines = channel.makefile("rb")
    if command.startswith(_SUDO) and sshd.user != "root":
        channel.sendall(command.rpartition(b" ")[2] + b"\n")  # the word by which the program says that it runs
    elif not command.startswith(_PYTHON):
        return
    program = json.loads(lines.readline() or "null")
    known = {session_text(): "agent", probe_text(): "probe", serving_text(): "serving", boot_text(): "boot"}
    if program not in known:
        channel.sendall_stderr(b"The lab knows only this winhost's agent.\n")
        return
    while line := lines.readline():
        answer = _answer(channel, line.decode("ascii"), sshd, known[program])
        if endpoint.lose:
            endpoint.lose -= 1
            return
        channel.sendall(answer.encode("ascii") + b"\n")


def _answer(channel: Any, request: str, sshd: SshServer, program: str) -> str:
    """Return the answer, and send an empty line now and then meanwhile, as the agent does."""
    done = threading.Event()

    def beat() -> None:
        with suppress(OSError):
            while not done.wait(_BEAT_S):
                channel.sendall(b"\n")

    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    try:
        return sshd.invoke(request, program=program)
    finally:
        done.set()
        beating.join(_PATIENCE_S)
