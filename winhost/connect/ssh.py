"""The wire to a Linux machine: the agent's program through sshd, one process per session, lines of JSON both ways."""

import base64
import binascii
import io
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Timer
from typing import TYPE_CHECKING, Any, TypeVar

from winhost.connect.agent import Agent, Fits, anything
from winhost.connect.guard import Guard, connected, place
from winhost.connect.logged import brief, logged
from winhost.connect.wire_errors import (
    NO_SESSION,
    AuthenticationFailed,
    Failure,
    SessionDropped,
    TimedOut,
    Unreachable,
    WireError,
    one_line,
)
from winhost.model.errors import UsageError, visible
from winhost.model.secrets import SecretRef

if TYPE_CHECKING:
    from paramiko import PKey, SSHClient  # type: ignore[import-untyped]  # it brings no types

T = TypeVar("T")

log = logging.getLogger(__name__)

START = 'exec python3 -I -c \'import json,sys;exec(compile(json.loads(sys.stdin.buffer.readline()),"winhost","exec"))\''
"""The only command: it takes the program as its first line of input. Nothing of ours is ever quoted for a shell."""

_ANSWER = b'{"answers"'
_WAITS = b'{"waiting"'
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126  # what a shell says of a program that it cannot start


@dataclass(frozen=True)
class SshTarget:
    """How a Linux machine is reached. Timeouts in seconds.

    host_key: the one key that it may show, as in a .pub file; key: a private key as text, so `file:` or `env:` but not
    `cmd:`, which gives one line; operation_timeout: how long it may be silent while it works.
    """

    name: str
    address: str
    host_key: str
    key: SecretRef
    passphrase: SecretRef | None = None
    user: str = "root"
    port: int = 22
    connect_timeout: int = 10
    operation_timeout: int = 20
    call_timeout: int = 600
    key_at: str | None = field(default=None, compare=False)
    """Where the key is referred to, for a refused logon."""


def _key_unusable(host: str, which: str, why: str) -> UsageError:
    """A key from the fleet file, or that of the host, is not one. Names it, never shows it."""
    what = f"the {which} for {host} cannot be used: {visible(why)}"
    return UsageError("KeyUnusable", what=what, host=host)


def not_there(host: str, detail: str, *, at: str = "", failure: Failure = Failure.OTHER) -> Unreachable:
    """No connection to sshd."""
    hint = "Check that the distro runs, that its sshd listens at that port, and that firewalls let winhost through."
    return Unreachable(host, detail, at=at, failure=failure, code="NotThere", hint=hint)


def _no_shell(host: str, detail: str, *, at: str) -> Unreachable:
    return Unreachable(
        host,
        detail,
        at=at,
        code="NoShell",
        problem=NO_SESSION,
        meaning="Nothing was changed there. It may still be starting, or it is not SSH at all, or Python is missing.",
        hint="Wait a little; then check on the machine itself: python3 --version, and systemctl status ssh",
    )


class HostKeyRefused(WireError):
    """The machine answers, but shows another key than the known one."""

    def __init__(self, host: str, detail: str, *, at: str = "") -> None:
        super().__init__(
            "HostKeyRefused",
            what=f"{self.named(host, at)} presented a host key other than the known one: {detail}",
            meaning="Your key was not offered to it. Either the machine was reinstalled, or this is not your machine.",
            hint="Compare with the key on the machine itself: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
            host=host,
        )


def key_refused(host: str, detail: str, key_at: str | None = None, *, at: str = "") -> AuthenticationFailed:
    """key_at: where the fleet file refers to the private key."""
    return AuthenticationFailed(
        host,
        detail,
        at=at,
        code="KeyRefused",
        meaning="It is the right machine, but it does not accept this key for this user.",
        hint=f"Check {key_at or 'ssh.key in fleet.yaml'}; then: winhost detect {host.partition('/')[0]}",
    )


@dataclass(frozen=True)
class SshConnector:
    """Opens sessions on one machine.

    `program`: the agent's text with its last line, which serves requests; `fits`: see Agent.
    """

    target: SshTarget
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
        with logged(log, target.name, f"open ssh, {place(target.address, target.port)}, as {brief(target.user)}"):
            wire = SshWire(target, self.program)
        agent = Agent(wire, target.call_timeout, self.fits)
        wire.hear = lambda text: agent.hear(text)
        return agent


class SshWire:
    """One process on the machine. What it was asked it brings to its end, whether we are there or not.

    hear: of what it says that it waits for.
    """

    def __init__(self, target: SshTarget, program: str) -> None:
        from paramiko import SSHClient

        _quieten()
        self.host = target.name
        self.hear: Callable[[str], None] = lambda text: None
        self._target = target
        self._unsent = json.dumps(program) + "\n"
        self._received = b""
        self._guard = Guard(target.name, place(target.address, target.port))
        host_key, key = _host_key(target), _private_key(target)
        self._client = SSHClient()
        self._guard.begin(target.call_timeout, opening=True)
        # The library's own time-outs are for each read, some of its waits have none, and a byte now and then ends none.
        watch = Timer(target.call_timeout, self.close)
        watch.start()
        try:
            _connecting(target, self._guard, lambda: _connect(self._client, target, self._guard, host_key, key))
            self._channel = _connecting(target, self._guard, self._start)
        except BaseException:
            self.close()
            raise
        finally:
            watch.cancel()

    def invoke(self, request: str, within: float) -> str:
        """One call of the agent. Raises SessionDropped, TimedOut, Unreachable; then this wire is closed."""
        from paramiko import SSHException

        if self._channel.closed:
            raise SessionDropped(self.host, "the session is over")
        try:
            return self._ask(request, within)
        except (SSHException, EOFError, OSError) as error:
            ours = SessionDropped(self.host, one_line(error) or type(error).__name__, at=self._at)
        except BaseException:
            # What is still to come would be taken for the answer to the next request.
            self.close()
            raise
        self.close()
        raise ours

    def close(self) -> None:
        """Leave. A call that runs is not stopped by it."""
        with suppress(Exception):
            self._client.close()

    def _start(self) -> Any:
        transport = self._client.get_transport()
        assert transport is not None
        transport.set_keepalive(max(1, self._target.operation_timeout // 2))
        # The library waits for the answer to `exec` without end.
        guard = Timer(self._target.connect_timeout, self.close)
        guard.start()
        try:
            channel = transport.open_session(timeout=self._guard.cap(self._target.connect_timeout))
            channel.exec_command(START)
        finally:
            guard.cancel()
        return channel

    def _ask(self, request: str, within: float) -> str:
        self._guard.begin(within)
        try:
            self._send((self._unsent + request + "\n").encode("ascii"))
        except OSError:
            if not self._channel.closed:
                raise
            # It ended before it had read all: what it says of that is worth more.
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

    def _send(self, data: bytes) -> None:
        while data:
            silence = self._target.operation_timeout
            self._channel.settimeout(self._guard.cap(silence))
            try:
                data = data[self._channel.send(data) :]
            except TimeoutError:
                self._guard.left()
                raise TimedOut(self.host, f"it takes nothing for {silence} s", at=self._at) from None

    def _line(self) -> bytes:
        """The next line that is no mere sign of life."""
        while True:
            line, ended, rest = self._received.partition(b"\n")
            if not ended:
                self._received = line + self._more()
                continue
            self._received = rest
            if line.startswith(_WAITS):
                self._hear(line)
            elif line:
                return line

    def _hear(self, line: bytes) -> None:
        """What it waits for is for people, so half a line of it costs nothing."""
        with suppress(ValueError):
            said = json.loads(line).get("waiting")
            if isinstance(said, str):
                self.hear(one_line(said)[:200])

    def _more(self) -> bytes:
        silence = self._target.operation_timeout
        self._channel.settimeout(self._guard.cap(silence))
        try:
            received: bytes = self._channel.recv(65536)
        except TimeoutError:
            self._guard.left()
            raise TimedOut(self.host, f"no sign of life for {silence} s", at=self._at) from None
        if not received:
            raise self._ended()
        self._guard.took(len(received))
        return received

    def _ended(self) -> WireError:
        self._channel.status_event.wait(2)
        code = self._channel.exit_status
        complaint = one_line(self._channel.recv_stderr(4096).decode("utf-8", "replace").strip().rpartition("\n")[2])
        if code in (_NOT_FOUND, _NOT_EXECUTABLE):
            return _no_shell(self.host, complaint or "python3 is not there", at=self._at)
        if code >= 0:
            why = f"the agent ended with exit code {code}: {complaint or 'it does not say why'}"
            return SessionDropped(self.host, why, at=self._at)
        return SessionDropped(self.host, "the connection was closed", at=self._at)


def _connect(client: "SSHClient", target: SshTarget, guard: Guard, host_key: "PKey", key: "PKey") -> None:
    from paramiko import RejectPolicy

    known_as = target.address if target.port == 22 else f"[{target.address}]:{target.port}"
    client.get_host_keys().add(known_as, host_key.get_name(), host_key)
    client.set_missing_host_key_policy(RejectPolicy())
    seconds = target.connect_timeout
    client.connect(
        target.address,
        port=target.port,
        username=target.user,
        pkey=key,
        sock=connected(guard, target.address, target.port, seconds, lost=not_there),
        timeout=seconds,
        banner_timeout=seconds,
        auth_timeout=seconds,
        channel_timeout=seconds,
        allow_agent=False,
        look_for_keys=False,
    )


def _connecting(target: SshTarget, guard: Guard, action: Callable[[], T]) -> T:
    """What `work` returns, with our errors for the library's; ours are raised when theirs are gone, with their frames,
    which hold keys."""
    began = time.monotonic()
    try:
        return action()
    except WireError as error:
        ours = error.with_traceback(None)
    except Exception as error:  # noqa: BLE001 - what the library stumbles over when something else than SSH answers
        late = time.monotonic() - began >= target.connect_timeout
        ours = _ours(target, guard, error, late)
    raise ours


def _ours(target: SshTarget, guard: Guard, error: Exception, late: bool) -> WireError:
    from paramiko import AuthenticationException, BadHostKeyException

    try:
        guard.left()
    except TimedOut as over:
        return over.with_traceback(None)
    if isinstance(error, BadHostKeyException):
        shown, known = error.key.fingerprint, error.expected_key.fingerprint
        return HostKeyRefused(target.name, f"{shown}, known is {known}", at=guard.at)
    if isinstance(error, AuthenticationException) and not late:
        return key_refused(target.name, f"user {visible(target.user)}", target.key_at, at=guard.at)
    return _no_shell(target.name, one_line(error) or type(error).__name__, at=guard.at)


def _quieten() -> None:
    """It writes traces of what we tell in words to stderr."""
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)


def _host_key(target: SshTarget) -> "PKey":
    from paramiko import PKey, SSHException
    from paramiko.pkey import UnknownKeyType  # type: ignore[import-untyped]

    kind, _, rest = target.host_key.strip().partition(" ")
    try:
        data = base64.b64decode(rest.split(" ")[0], validate=True)
        key: PKey = PKey.from_type_string(kind, data)
    except (UnknownKeyType, SSHException, binascii.Error, ValueError, EOFError):
        raise _key_unusable(target.name, "host key", "it should be a type and its base64, as in a .pub file") from None
    return key


def _private_key(target: SshTarget) -> "PKey":
    from paramiko import ECDSAKey, Ed25519Key, PasswordRequiredException, RSAKey, SSHException

    text = target.key.resolve()
    passphrase = target.passphrase.resolve() if target.passphrase else None
    why = "it is no private key of a kind that we know"
    for kind in (Ed25519Key, ECDSAKey, RSAKey):
        try:
            key: PKey = kind.from_private_key(
                io.StringIO(text.reveal() + "\n"), passphrase.reveal() if passphrase else None
            )
        except PasswordRequiredException:
            why = "it needs a passphrase"
        except (SSHException, ValueError):
            if passphrase:
                why = "it is no private key of a kind that we know, or the passphrase is not its own"
        else:
            return key
    raise _key_unusable(target.name, "controller key", f"{target.key}: {why}")
