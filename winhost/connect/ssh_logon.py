"""Logging on to an sshd: through a jump host where there is one, and to nobody whose key is not known."""

import io
import logging
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field
from threading import Timer
from typing import TYPE_CHECKING, Any, TypeVar

from winhost.connect.guard import Guard, connected, shown_address
from winhost.connect.host_keys import HostKeyRefused, KnownKeys, key_unusable, known_keys
from winhost.connect.tunnel import NotJoined, joined
from winhost.connect.wire_errors import (
    NO_SESSION,
    AuthenticationFailed,
    Failure,
    TimedOut,
    Unreachable,
    WireError,
    one_line,
)
from winhost.core.dataclass import dataclass
from winhost.model.errors import WinhostError, visible
from winhost.model.fleet import Login
from winhost.model.once import once
from winhost.model.secrets import Secret

if TYPE_CHECKING:
    from paramiko import PKey, SSHClient  # type: ignore[import-untyped]  # it brings no types

T = TypeVar("T")


START_SSHD = (
    "On the machine, with sudo: systemctl enable --now ssh\n"
    "Where it is not installed: apt-get install openssh-server. Fedora and its kin call it sshd"
)


def not_there(host: str, detail: str, *, at: str = "", failure: Failure = Failure.OTHER) -> Unreachable:
    """No connection to sshd."""
    hint = "Check that this Linux runs, that its sshd listens at that port, and that firewalls let winhost through."
    if failure is Failure.REFUSED and at.endswith(" port 22"):
        hint = START_SSHD
    return Unreachable(host, detail, at=at, failure=failure, code="NotThere", hint=hint)


def no_shell(host: str, detail: str, *, at: str, here: bool = False) -> Unreachable:
    """sshd answers, and opens no session, or not one with Python. here: no sshd is between winhost and this Linux."""
    meaning = "Nothing was changed there. It may still be starting, or it is not SSH at all, or Python is missing."
    hint = "Wait a little; then check on the machine itself: python3 --version, and systemctl status ssh"
    if here:
        meaning = "Nothing was changed: what reads and changes this Linux is a script for its own python3."
        hint = "See what is there: python3 --version\nOn Debian and Ubuntu it comes by: sudo apt-get install python3"
    return Unreachable(host, detail, at=at, code="NoShell", problem=NO_SESSION, meaning=meaning, hint=hint)


def key_refused(
    host: str, detail: str, key_at: str | None = None, *, at: str = "", proof: str = "this key"
) -> AuthenticationFailed:
    """key_at: where the fleet file says how to log on; proof: what was shown to it."""
    return AuthenticationFailed(
        host,
        detail,
        at=at,
        code="KeyRefused",
        meaning=f"It is the right machine, but it does not accept {proof} for this user.",
        hint=f"Check {key_at or 'ssh.key in fleet.yaml'}; then: winhost detect {host.partition('/')[0]}",
    )


@dataclass
class SshConnection:
    """Clients that are logged on, the last one to the machine itself. `close` may come from another thread."""

    _clients: list["SSHClient"] = field(default_factory=list)

    def open(self, name: str, login: Login, jump: Login | None, guard: Guard) -> None:
        """Raises WireError, and UsageError (KeyUnusable, SecretUnreadable)."""
        quieten()
        load_paramiko()
        if jump is None:
            self._log_on(login, guard, lambda: _tcp(login, guard))
            return
        at = shown_address(jump.address, jump.port)
        first = Guard(f"{name}/jump", at, timeouts=guard.timeouts)
        first.begin(login.call_timeout, opening=True)
        self._log_on(jump, first, lambda: _tcp(jump, first))
        self._log_on(login, guard, lambda: _forwarded(self._clients[0], login, name, at))

    def start(self, command: str, login: Login, guard: Guard) -> Any:
        """A channel to this command on the machine itself. Raises WireError."""
        return connecting(login, guard, lambda: self._started(command, login, guard))

    def _started(self, command: str, login: Login, guard: Guard) -> Any:
        transport = self.transport()
        transport.set_keepalive(max(1, login.operation_timeout // 2))
        # The library waits for the answer to `exec` without end.
        watch = Timer(login.connect_timeout, self.close)
        watch.start()
        try:
            channel = transport.open_session(timeout=guard.cap(login.connect_timeout))
            channel.exec_command(command)
        finally:
            watch.cancel()
        return channel

    def tunnel(self, address: str, port: int, within: float) -> socket.socket:
        """Raises NotJoined, and `faults`."""
        from paramiko import ChannelException

        try:
            return joined(
                self.transport().open_channel("direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=within)
            )
        except ChannelException as error:
            raise NotJoined(one_line(error.text) or f"code {error.code}") from None

    @property
    def alive(self) -> bool:
        """The connection is open, as far as anybody has noticed."""
        return bool(self.transport().is_active())

    @property
    def faults(self) -> tuple[type[Exception], ...]:
        """The errors that the library raises where a connection is lost."""
        from paramiko import SSHException

        return (SSHException, EOFError, OSError)

    def transport(self) -> Any:
        """paramiko's, to the machine itself."""
        return self._clients[-1].get_transport()

    def close(self) -> None:
        for client in reversed(self._clients):
            with suppress(Exception):
                client.close()

    def _log_on(self, login: Login, guard: Guard, connect: Callable[[], Any]) -> None:
        from paramiko import SSHClient

        known = known_keys(guard.host, guard.at, login)
        key = private_key(guard.host, login)
        password = login.password.resolve() if login.password else None
        _refuse_empty_agent(guard.host, login)
        client = SSHClient()
        self._clients.append(client)
        with_what = key, password
        connecting(login, guard, lambda: _log_on(client, login, known, with_what, connect(), guard), known)


def _tcp(login: Login, guard: Guard) -> Any:
    return connected(guard, login.address, login.port, login.connect_timeout, lost=not_there)


def _forwarded(client: "SSHClient", login: Login, name: str, jump: str) -> Any:
    from paramiko import ChannelException

    transport = client.get_transport()
    assert transport is not None
    try:
        return transport.open_channel(
            "direct-tcpip", (login.address, login.port), ("127.0.0.1", 0), timeout=login.connect_timeout
        )
    except ChannelException as error:
        raise Unreachable(
            name,
            one_line(error.text) or f"code {error.code}",
            code="NotForwarded",
            problem=f"cannot be reached through the jump host {jump}",
            meaning="The jump host let winhost in and did not connect it further. Nothing was sent to the host itself.",
            hint="On the jump host: check that it reaches that address and port, and that sshd_config has "
            f"AllowTcpForwarding yes; then: winhost detect {name}",
        ) from None


def _log_on(
    client: "SSHClient",
    login: Login,
    known: KnownKeys,
    proof: tuple["PKey | None", Secret | None],
    sock: Any,
    guard: Guard,
) -> None:
    from paramiko import AuthenticationException

    key, password = proof
    seconds = login.connect_timeout
    client.set_missing_host_key_policy(known)
    try:
        client.connect(
            login.address,
            port=login.port,
            username=login.user,
            pkey=key,
            password=password.reveal() if password else None,
            sock=sock,
            timeout=seconds,
            banner_timeout=seconds,
            auth_timeout=seconds,
            channel_timeout=seconds,
            disabled_algorithms=known.unasked,
            allow_agent=login.agent,
            look_for_keys=False,
        )
    except AuthenticationException:
        cut = _cut(client, login, guard)
        if cut is None:
            raise
    else:
        return
    raise cut


def _cut(client: "SSHClient", login: Login, guard: Guard) -> Unreachable | None:
    """The error for a connection that ended during the logon; None where the logon was refused. sshd ends it, with the
    words of PAM, while systemd lets no users in yet; and, where it was offered several keys, after refusing some.
    """
    transport = client.get_transport()
    if login.agent or transport is None or transport.is_active():
        return None
    banner = getattr(transport.auth_handler, "banner", None) or b""  # `get_banner` has none once it has ended
    said = one_line(banner.decode("utf-8", "replace"))[:300]
    detail = f"it closed the connection while user {visible(login.user)} logged on"
    return no_shell(guard.host, f"{detail}, and said: {said}" if said else detail, at=guard.at)


def connecting(login: Login, guard: Guard, action: Callable[[], T], known: KnownKeys | None = None) -> T:
    """Run `action`, and raise our errors instead of the library's; ours are raised when theirs are gone, with their
    frames, which hold keys.
    """
    began = time.monotonic()
    try:
        return action()
    except WinhostError as error:
        ours = error.with_traceback(None)
    except Exception as error:  # noqa: BLE001 - what the library stumbles over when something else than SSH answers
        late = time.monotonic() - began >= login.connect_timeout
        ours = _ours(login, guard, error, late, known)
    raise ours


def _ours(login: Login, guard: Guard, error: Exception, late: bool, known: KnownKeys | None) -> WireError:
    from paramiko import AuthenticationException
    from paramiko.ssh_exception import IncompatiblePeer  # type: ignore[import-untyped]

    try:
        guard.left()
    except TimedOut as over:
        return over.with_traceback(None)
    if isinstance(error, IncompatiblePeer) and known and known.unasked and "host key" in str(error):
        return HostKeyRefused(guard.host, f"none of the kind that is known; known is {known.known}", at=guard.at)
    if isinstance(error, AuthenticationException) and not late:
        shown = {"this key": login.key, "any key of the ssh-agent": login.agent, "this password": login.password}
        proof = " or ".join(name for name, given in shown.items() if given)
        return key_refused(
            guard.host,
            f"user {visible(login.user)}",
            login.position_of("key", "password", "agent"),
            at=guard.at,
            proof=proof,
        )
    return no_shell(guard.host, one_line(error) or type(error).__name__, at=guard.at)


def quieten() -> None:
    """Silence the library, which writes tracebacks of errors that we report in words."""
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)


@once
def load_paramiko() -> None:
    """Import paramiko without `invoke`, which it needs only to run the programs of an ssh_config, a file that we never
    let it read. That saves half of the time of the import.
    """
    before = sys.modules.get("invoke")
    sys.modules["invoke"] = None  # type: ignore[assignment]  # how Python itself says that it cannot be imported
    try:
        import paramiko  # noqa: F401
    finally:
        del sys.modules["invoke"]
        if before is not None:
            sys.modules["invoke"] = before


def _refuse_empty_agent(host: str, login: Login) -> None:
    """Name an ssh-agent without keys, where paramiko would say that no way to log on was given. Raises UsageError:
    KeyUnusable.
    """
    from paramiko import Agent

    if not login.agent or login.key or login.password:
        return
    agent = Agent()
    try:
        if not agent.get_keys():
            raise key_unusable(host, "ssh-agent", "it has no key, or SSH_AUTH_SOCK names none", "ssh-add -l shows them")
    finally:
        agent.close()


def private_key(host: str, login: Login) -> "PKey | None":
    """Raises UsageError: KeyUnusable, SecretUnreadable."""
    from paramiko import ECDSAKey, Ed25519Key, PasswordRequiredException, RSAKey, SSHException

    if login.key is None:
        return None
    text = login.key.resolve()
    passphrase = login.passphrase.resolve() if login.passphrase else None
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
    raise key_unusable(host, "controller key", f"{login.key}: {why}")
