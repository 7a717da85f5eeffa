"""The wire to a Linux machine: the agent's program through sshd, one process per session, lines of JSON both ways."""

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

from winhost.connect.agent import Agent, Fits, anything
from winhost.connect.guard import Guard, shown_address
from winhost.connect.logged import brief, logged
from winhost.connect.ssh_logon import SshConnection, no_shell
from winhost.connect.sudo import SudoLogon, program_as_root
from winhost.connect.this_linux import AT, ThisLinux
from winhost.connect.tunnel import NotJoined, SshWay
from winhost.connect.wire_errors import SessionDropped, TimedOut, Unreachable, WireError, one_line
from winhost.core.dataclass import dataclass
from winhost.model.fleet import LinuxHost

log = logging.getLogger(__name__)

_TAKE = 'PROGRAM=json.loads(sys.stdin.buffer.readline());exec(compile(PROGRAM,"winhost","exec"))'
START = f"exec python3 -I -c 'import json,sys;{_TAKE}'"
"""The only command: it takes the program as its first line of input, and lets it know its own text. Nothing of ours is
ever quoted for a shell.
"""
_AS_ROOT = f"python3 -I -c 'import json,sys;print(sys.argv[1],flush=True);{_TAKE}'"

_ANSWER = b'{"answers"'
_WAITS = b'{"waiting"'
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # what a shell says of a program that it cannot start
_SUDO_PATIENCE = 3  # times the silence allowed: where no name server answers, sudo looks for its own host for 20 s


@dataclass(frozen=True)
class SshConnector:
    """Opens sessions on one machine.

    `program`: the agent's text with its last line, which serves requests; `fits`: see Agent.
    """

    target: LinuxHost
    program: str
    fits: Fits = anything

    @property
    def host(self) -> str:
        return self.target.name

    def open(self) -> Agent:
        """A session; the agent goes there with the first call.

        Raises WireError, and UsageError (KeyUnusable, SecretUnreadable).
        """
        target = self.target
        way = AT if target.is_this_computer else f"ssh, {shown_address(target.address, target.port)}"
        with logged(log, target.name, f"open {way}, as {brief(target.user)}"):
            wire = SshWire(target, self.program)
        agent = Agent(wire, target.call_timeout, self.fits, "linux")
        wire.hear = lambda text: agent.hear(text)
        return agent


class SshWire:
    """One process on the machine. It finishes the call that it has begun, also if this end goes away.

    hear: is told what it waits for.
    """

    def __init__(self, target: LinuxHost, program: str) -> None:
        self.host = target.name
        self.hear: Callable[[str], None] = lambda text: None
        self._target = target
        self._unsent = json.dumps(program) + "\n"
        self._received = b""
        at = AT if target.is_this_computer else shown_address(target.address, target.port)
        self._guard = Guard(target.name, at, timeouts=target.timeouts)
        self._client: SshConnection | ThisLinux = ThisLinux() if target.is_this_computer else SshConnection()
        self._guard.begin(target.call_timeout, opening=True)
        # The library's own time-outs are for each read, some of its waits have none, and a byte now and then ends none.
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
        """One call of the agent. Raises SessionDropped, TimedOut, Unreachable; then this wire is closed."""
        if self._channel.closed:
            raise SessionDropped(self.host, "the session is over")
        try:
            return self._ask(request, within)
        except self._client.faults as error:
            ours = SessionDropped(self.host, one_line(error) or type(error).__name__, at=self._at)
        except BaseException:
            # What is still to come would be taken for the answer to the next request.
            self.close()
            raise
        self.close()
        raise ours

    @property
    def way(self) -> SshWay | None:
        """The SSH connection that leads there; None for this computer itself."""
        target, jump = self._target, self._target.jump
        if target.is_this_computer:
            return None
        key = target.key.target if target.key and target.key.scheme == "file" else None
        over = f"{jump.user}@{shown_address(jump.address, jump.port)}" if jump else None
        return SshWay(target.user, target.address, target.port, key, over)

    def tunnel(self, address: str, port: int) -> socket.socket:
        """A connection from the machine to this address. Raises Unreachable, SessionDropped."""
        try:
            return self._client.tunnel(address, port, self._target.connect_timeout)
        except NotJoined as refused:
            own = self.host.partition("/")[0]
            raise Unreachable(
                self.host,
                str(refused),
                at=shown_address(address, port),
                code="NotTunnelled",
                problem="did not connect winhost further",
                meaning="sshd there let winhost in and refused the connection, or nothing listens at that address.",
                hint=f"Check AllowTcpForwarding in its sshd_config, and: winhost serve status {own}",
            ) from None
        except self._client.faults as error:
            raise SessionDropped(self.host, one_line(error) or type(error).__name__, at=self._at) from None

    @property
    def alive(self) -> bool:
        """The connection is open, as far as anybody has noticed."""
        return self._client.alive

    def close(self) -> None:
        """Leave. A call that runs is not stopped by it."""
        self._client.close()

    def _start(self) -> Any:
        target, token = self._target, secrets.token_hex(16)
        command = program_as_root(target, token, _AS_ROOT) if target.sudo else START
        channel = self._client.start(command, target, self._guard)
        if target.sudo:
            logon = SudoLogon(target, token, self._at)
            with logged(log, self.host, "become root with sudo"):
                logon.become_root(channel, self._guard.cap(_SUDO_PATIENCE * target.operation_timeout))
        return channel

    def _ask(self, request: str, within: float) -> str:
        self._guard.begin(within)
        try:
            data = (self._unsent + request + "\n").encode("ascii")
            while data:
                data = data[self._within_silence(partial(self._channel.send, data), "it takes nothing") :]
        except OSError:
            if not self._channel.closed:
                raise
            # It ended before it had read all: the reason that it gives says more.
        self._unsent = ""
        line = self._line()
        if not line.startswith(_ANSWER):
            raise SessionDropped(self.host, f"what came back is no answer: {one_line(repr(line[:80]))}", at=self._at)
        try:
            return line.decode("ascii")
        except UnicodeDecodeError:
            raise SessionDropped(self.host, "what came back is no answer: it is not ASCII", at=self._at) from None

    @property
    def _at(self) -> str:
        return self._guard.at

    def _line(self) -> bytes:
        """The next line that is no sign of life."""
        while True:
            line, ended, rest = self._received.partition(b"\n")
            if not ended:
                received: bytes = self._within_silence(partial(self._channel.recv, 65536), "no sign of life")
                if not received:
                    raise self._ended()
                self._guard.took(len(received))
                self._received = line + received
                continue
            self._received = rest
            if line.startswith(_WAITS):
                self._hear(line)
            elif line:
                return line

    def _hear(self, line: bytes) -> None:
        """Pass on what the agent waits for. It is for people, so half a line of it does no harm."""
        with suppress(ValueError):
            said = json.loads(line).get("waiting")
            if isinstance(said, str):
                self.hear(one_line(said)[:200])

    def _within_silence(self, act: Callable[[], Any], what: str) -> Any:
        silence = self._target.operation_timeout
        end = time.monotonic() + silence
        while True:
            self._channel.settimeout(self._guard.cap(max(0, end - time.monotonic())))
            try:
                return act()
            except TimeoutError:
                self._guard.left()
            # paramiko takes a clock that was set meanwhile for time that has passed, and overlooks what has come.
            if time.monotonic() >= end:
                raise TimedOut(self.host, f"{what} for {silence} s", at=self._at)

    def _ended(self) -> WireError:
        self._channel.status_event.wait(2)
        code = self._channel.exit_status
        complaint = one_line(self._channel.recv_stderr(4096).decode("utf-8", "replace").strip().rpartition("\n")[2])
        if code in (_NOT_FOUND, _NOT_EXECUTABLE):
            here = self._at == AT
            return no_shell(self.host, complaint or "python3 is not there", at=self._at, here=here)
        if code >= 0:
            why = f"the agent ended with exit code {code}: {complaint or 'it does not say why'}"
            return SessionDropped(self.host, why, at=self._at)
        return SessionDropped(self.host, "the connection was closed", at=self._at)
