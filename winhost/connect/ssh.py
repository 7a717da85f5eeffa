"""The wire to a Linux machine: the agent runs through sshd, one process per session, with lines of JSON both ways."""

import json
import logging
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Timer
from typing import Any

from winhost.connect.agent import Agent, Fits, accept_any
from winhost.connect.guard import Guard, format_address
from winhost.connect.logged import logged, shorten
from winhost.connect.ssh_logon import SshConnection, no_shell_error
from winhost.connect.sudo import SudoLogon, root_command
from winhost.connect.this_linux import THIS_COMPUTER, ThisLinux
from winhost.connect.tunnel import SshRoute, TunnelRefused
from winhost.connect.wire_errors import SessionDropped, TimedOut, Unreachable, WireError, one_line
from winhost.core.dataclass import dataclass
from winhost.model.fleet import LinuxHost

log = logging.getLogger(__name__)

_READ_PROGRAM = 'PROGRAM=json.loads(sys.stdin.buffer.readline());exec(compile(PROGRAM,"winhost","exec"))'
START = f"exec python3 -I -c 'import json,sys;{_READ_PROGRAM}'"
"""The only command. It reads the program as its first line of input, and gives the program its own text. No values are
ever quoted for a shell.
"""
_START_AS_ROOT = f"python3 -I -c 'import json,sys;print(sys.argv[1],flush=True);{_READ_PROGRAM}'"

_ANSWER_PREFIX = b'{"answers"'
_WAITING_PREFIX = b'{"waiting"'
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # exit codes of a shell for a program that it cannot start
_SUDO_PATIENCE = 3  # times the operation timeout: without a name server, sudo looks up its own host for 20 s


@dataclass(frozen=True)
class SshConnector:
    """Opens sessions with one machine. program: the agent's text, with a last line that serves requests; fits: see
    Agent.
    """

    target: LinuxHost
    program: str
    fits: Fits = accept_any

    @property
    def host(self) -> str:
        return self.target.name

    def open(self) -> Agent:
        """Open a session. The agent is sent with the first call.

        Raises WireError, and UsageError (KeyUnusable, SecretUnreadable).
        """
        target = self.target
        route = THIS_COMPUTER if target.is_this_computer else f"ssh, {format_address(target.address, target.port)}"
        with logged(log, target.name, f"open {route}, as {shorten(target.user)}"):
            wire = SshWire(target, self.program)
        agent = Agent(wire, target.call_timeout, self.fits, "linux")
        wire.on_wait = lambda text: agent.on_wait(text)
        return agent


class SshWire:
    """One process on the machine. It finishes a call that has started even if this end disconnects.

    on_wait: is called with what the process waits for.
    """

    def __init__(self, target: LinuxHost, program: str) -> None:
        self.host = target.name
        self.on_wait: Callable[[str], None] = lambda text: None
        self._target = target
        self._unsent = json.dumps(program) + "\n"
        self._received = b""
        endpoint = THIS_COMPUTER if target.is_this_computer else format_address(target.address, target.port)
        self._guard = Guard(target.name, endpoint, timeouts=target.timeouts)
        self._client: SshConnection | ThisLinux = ThisLinux() if target.is_this_computer else SshConnection()
        self._guard.begin(target.call_timeout, opening=True)
        # The library's timeouts are for each read, and some of its waits have none, so a slow host could exceed them.
        watch = Timer(target.call_timeout, self.close)
        watch.start()
        try:
            self._client.open(target.name, target, target.jump, self._guard)
            self._channel = self._start()
        except BaseException:
            self.close()
            raise
        finally:
            watch.cancel()

    def invoke(self, request: str, within: float) -> str:
        """Call the agent. Raises SessionDropped, TimedOut, Unreachable, and then closes this wire."""
        if self._channel.closed:
            raise SessionDropped(self.host, "the session is over")
        try:
            return self._request(request, within)
        except self._client.faults as error:
            dropped = SessionDropped(self.host, one_line(error) or type(error).__name__, endpoint=self._endpoint)
        except BaseException:
            # An answer that arrives later would be mistaken for that to the next request.
            self.close()
            raise
        self.close()
        raise dropped

    @property
    def route(self) -> SshRoute | None:
        """The SSH route to the machine; None for this computer itself."""
        target, jump = self._target, self._target.jump
        if target.is_this_computer:
            return None
        key = target.key.target if target.key and target.key.scheme == "file" else None
        jump_option = f"{jump.user}@{format_address(jump.address, jump.port)}" if jump else None
        return SshRoute(target.user, target.address, target.port, key, jump_option)

    def tunnel(self, address: str, port: int) -> socket.socket:
        """Open a connection from the machine to this address. Raises Unreachable, SessionDropped."""
        try:
            return self._client.tunnel(address, port, self._target.connect_timeout)
        except TunnelRefused as error:
            name = self.host.partition("/")[0]
            raise Unreachable(
                self.host,
                str(error),
                endpoint=format_address(address, port),
                code="NotTunnelled",
                problem="did not connect winhost further",
                meaning="sshd there let winhost in and refused the connection, or nothing listens at that address.",
                hint=f"Check AllowTcpForwarding in its sshd_config, and: winhost serve status {name}",
            ) from None
        except self._client.faults as error:
            raise SessionDropped(self.host, one_line(error) or type(error).__name__, endpoint=self._endpoint) from None

    @property
    def alive(self) -> bool:
        """True unless the connection is known to be closed."""
        return self._client.alive

    def close(self) -> None:
        """Close the connection. A running call is not stopped by that."""
        self._client.close()

    def _start(self) -> Any:
        target, token = self._target, secrets.token_hex(16)
        command = root_command(target, token, _START_AS_ROOT) if target.sudo else START
        channel = self._client.start(command, target, self._guard)
        if target.sudo:
            logon = SudoLogon(target, token, self._endpoint)
            with logged(log, self.host, "become root with sudo"):
                logon.become_root(channel, self._guard.cap(_SUDO_PATIENCE * target.operation_timeout))
        return channel

    def _request(self, request: str, within: float) -> str:
        self._guard.begin(within)
        try:
            data = (self._unsent + request + "\n").encode("ascii")
            while data:
                data = data[self._wait_for(partial(self._channel.send, data), "it takes nothing") :]
        except OSError:
            if not self._channel.closed:
                raise
            # The process ended before it had read everything. Its error output explains more.
        self._unsent = ""
        line = self._read_answer_line()
        if not line.startswith(_ANSWER_PREFIX):
            raise SessionDropped(
                self.host, f"what came back is no answer: {one_line(repr(line[:80]))}", endpoint=self._endpoint
            )
        try:
            return line.decode("ascii")
        except UnicodeDecodeError:
            raise SessionDropped(
                self.host, "what came back is no answer: it is not ASCII", endpoint=self._endpoint
            ) from None

    @property
    def _endpoint(self) -> str:
        return self._guard.endpoint

    def _read_answer_line(self) -> bytes:
        """Read the next line that is not only a sign of life."""
        while True:
            line, ended, rest = self._received.partition(b"\n")
            if not ended:
                received: bytes = self._wait_for(partial(self._channel.recv, 65536), "no sign of life")
                if not received:
                    raise self._end_error()
                self._guard.count_received(len(received))
                self._received = line + received
                continue
            self._received = rest
            if line.startswith(_WAITING_PREFIX):
                self._report_wait(line)
            elif line:
                return line

    def _report_wait(self, line: bytes) -> None:
        """Report what the agent waits for. An invalid line is ignored, because it is only for people."""
        with suppress(ValueError):
            text = json.loads(line).get("waiting")
            if isinstance(text, str):
                self.on_wait(one_line(text)[:200])

    def _wait_for(self, action: Callable[[], Any], what: str) -> Any:
        silence = self._target.operation_timeout
        end = time.monotonic() + silence
        while True:
            self._channel.settimeout(self._guard.cap(max(0, end - time.monotonic())))
            try:
                return action()
            except TimeoutError:
                self._guard.remaining()
            # After a change of the clock paramiko raises too early, and may have missed data.
            if time.monotonic() >= end:
                raise TimedOut(self.host, f"{what} for {silence} s", endpoint=self._endpoint)

    def _end_error(self) -> WireError:
        self._channel.status_event.wait(2)
        code = self._channel.exit_status
        message = one_line(self._channel.recv_stderr(4096).decode("utf-8", "replace").strip().rpartition("\n")[2])
        if code in (_NOT_FOUND, _NOT_EXECUTABLE):
            is_local = self._endpoint == THIS_COMPUTER
            return no_shell_error(self.host, message or "python3 is not there", endpoint=self._endpoint, here=is_local)
        if code >= 0:
            why = f"the agent ended with exit code {code}: {message or 'it does not say why'}"
            return SessionDropped(self.host, why, endpoint=self._endpoint)
        return SessionDropped(self.host, "the connection was closed", endpoint=self._endpoint)
