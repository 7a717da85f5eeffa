"""Log on to an sshd, perhaps through a jump host, and only if its host key is known."""

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

from winhost.connect.guard import Guard, connect_socket, format_address
from winhost.connect.host_keys import HostKeyRefused, KnownKeys, load_known_keys, unusable_key_error
from winhost.connect.tunnel import TunnelRefused, socket_through
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


def no_sshd_error(host: str, detail: str, *, endpoint: str = "", failure: Failure = Failure.OTHER) -> Unreachable:
    """Make the error for a failed connection to sshd."""
    hint = "Check that this Linux runs, that its sshd listens at that port, and that firewalls let winhost through."
    if failure is Failure.REFUSED and endpoint.endswith(" port 22"):
        hint = START_SSHD
    return Unreachable(host, detail, endpoint=endpoint, failure=failure, code="NotThere", hint=hint)


def no_shell_error(host: str, detail: str, *, endpoint: str, here: bool = False) -> Unreachable:
    """Make the error for an sshd that answers but opens no session, or for a missing Python. here: of this computer,
    without sshd.
    """
    meaning = "Nothing was changed there. It may still be starting, or it is not SSH at all, or Python is missing."
    hint = "Wait a little; then check on the machine itself: python3 --version, and systemctl status ssh"
    if here:
        meaning = "Nothing was changed: what reads and changes this Linux is a script for its own python3."
        hint = "See what is there: python3 --version\nOn Debian and Ubuntu it comes by: sudo apt-get install python3"
    return Unreachable(host, detail, endpoint=endpoint, code="NoShell", problem=NO_SESSION, meaning=meaning, hint=hint)


def key_refused_error(
    host: str, detail: str, key_at: str | None = None, *, endpoint: str = "", proof: str = "this key"
) -> AuthenticationFailed:
    """Make the error for a refused logon. key_at: the setting of the logon in the fleet file; proof: what was
    offered.
    """
    return AuthenticationFailed(
        host,
        detail,
        endpoint=endpoint,
        code="KeyRefused",
        meaning=f"It is the right machine, but it does not accept {proof} for this user.",
        hint=f"Check {key_at or 'ssh.key in fleet.yaml'}; then: winhost detect {host.partition('/')[0]}",
    )


@dataclass
class SshConnection:
    """Connected clients: perhaps one to a jump host, then the one to the machine. `close` may be called by another
    thread.
    """

    _clients: list["SSHClient"] = field(default_factory=list)

    def open(self, name: str, login: Login, jump: Login | None, guard: Guard) -> None:
        """Log on. Raises WireError, and UsageError (KeyUnusable, SecretUnreadable)."""
        silence_paramiko()
        load_paramiko()
        if jump is None:
            self._log_on(login, guard, lambda: _connect_tcp(login, guard))
            return
        endpoint = format_address(jump.address, jump.port)
        jump_guard = Guard(f"{name}/jump", endpoint, timeouts=guard.timeouts)
        jump_guard.begin(login.call_timeout, opening=True)
        self._log_on(jump, jump_guard, lambda: _connect_tcp(jump, jump_guard))
        self._log_on(login, guard, lambda: _connect_forwarded(self._clients[0], login, name, endpoint))

    def start(self, command: str, login: Login, guard: Guard) -> Any:
        """Start a command on the machine. Returns its channel. Raises WireError."""
        return translate_errors(login, guard, lambda: self._start_command(command, login, guard))

    def _start_command(self, command: str, login: Login, guard: Guard) -> Any:
        transport = self.transport()
        transport.set_keepalive(max(1, login.operation_timeout // 2))
        # The library waits for the answer to `exec` without a timeout.
        watch = Timer(login.connect_timeout, self.close)
        watch.start()
        try:
            channel = transport.open_session(timeout=guard.cap(login.connect_timeout))
            channel.exec_command(command)
        finally:
            watch.cancel()
        return channel

    def tunnel(self, address: str, port: int, within: float) -> socket.socket:
        """Open a connection from the machine to this address. Raises TunnelRefused, and one of `faults`."""
        from paramiko import ChannelException

        try:
            return socket_through(
                self.transport().open_channel("direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=within)
            )
        except ChannelException as error:
            raise TunnelRefused(one_line(error.text) or f"code {error.code}") from None

    @property
    def alive(self) -> bool:
        """True unless the connection is known to be closed."""
        return bool(self.transport().is_active())

    @property
    def faults(self) -> tuple[type[Exception], ...]:
        """The errors that the library raises if the connection is lost."""
        from paramiko import SSHException

        return (SSHException, EOFError, OSError)

    def transport(self) -> Any:
        """Return paramiko's transport to the machine."""
        return self._clients[-1].get_transport()

    def close(self) -> None:
        for client in reversed(self._clients):
            with suppress(Exception):
                client.close()

    def _log_on(self, login: Login, guard: Guard, connect: Callable[[], Any]) -> None:
        from paramiko import SSHClient

        known = load_known_keys(guard.host, guard.endpoint, login)
        key = private_key(guard.host, login)
        password = login.password.resolve() if login.password else None
        _refuse_empty_agent(guard.host, login)
        client = SSHClient()
        self._clients.append(client)
        proof = key, password
        translate_errors(login, guard, lambda: _log_on(client, login, known, proof, connect(), guard), known)


def _connect_tcp(login: Login, guard: Guard) -> Any:
    return connect_socket(guard, login.address, login.port, login.connect_timeout, make_error=no_sshd_error)


def _connect_forwarded(client: "SSHClient", login: Login, name: str, jump: str) -> Any:
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
            disabled_algorithms=known.disabled_algorithms,
            allow_agent=login.agent,
            look_for_keys=False,
        )
    except AuthenticationException:
        cut = _cut_off_error(client, login, guard)
        if cut is None:
            raise
    else:
        return
    raise cut


def _cut_off_error(client: "SSHClient", login: Login, guard: Guard) -> Unreachable | None:
    """Make the error for a connection that ended during the logon; return None if the logon was refused. sshd ends it
    with a message of PAM while systemd does not allow logons yet. With an ssh-agent sshd also ends it after too many
    refused keys, so that counts as refused.
    """
    transport = client.get_transport()
    if login.agent or transport is None or transport.is_active():
        return None
    banner = getattr(transport.auth_handler, "banner", None) or b""  # `get_banner` returns none after the end
    text = one_line(banner.decode("utf-8", "replace"))[:300]
    detail = f"it closed the connection while user {visible(login.user)} logged on"
    return no_shell_error(guard.host, f"{detail}, and said: {text}" if text else detail, endpoint=guard.endpoint)


def translate_errors(login: Login, guard: Guard, action: Callable[[], T], known: KnownKeys | None = None) -> T:
    """Run `action`, and raise winhost's errors instead of the library's. These are not chained, because their frames
    hold keys.
    """
    start = time.monotonic()
    try:
        return action()
    except WinhostError as error:
        translated = error.with_traceback(None)
    except Exception as error:  # noqa: BLE001 - the library raises anything if the answer is not of SSH
        is_late = time.monotonic() - start >= login.connect_timeout
        translated = _translate(login, guard, error, is_late, known)
    raise translated


def _translate(login: Login, guard: Guard, error: Exception, is_late: bool, known: KnownKeys | None) -> WireError:
    from paramiko import AuthenticationException
    from paramiko.ssh_exception import IncompatiblePeer  # type: ignore[import-untyped]

    try:
        guard.remaining()
    except TimedOut as timed_out:
        return timed_out.with_traceback(None)
    if isinstance(error, IncompatiblePeer) and known and known.disabled_algorithms and "host key" in str(error):
        return HostKeyRefused(
            guard.host, f"none of the kind that is known; known is {known.known}", endpoint=guard.endpoint
        )
    if isinstance(error, AuthenticationException) and not is_late:
        proofs = {"this key": login.key, "any key of the ssh-agent": login.agent, "this password": login.password}
        proof = " or ".join(name for name, is_used in proofs.items() if is_used)
        return key_refused_error(
            guard.host,
            f"user {visible(login.user)}",
            login.position_of("key", "password", "agent"),
            endpoint=guard.endpoint,
            proof=proof,
        )
    return no_shell_error(guard.host, one_line(error) or type(error).__name__, endpoint=guard.endpoint)


def silence_paramiko() -> None:
    """Silence the library, which logs tracebacks of errors that winhost reports itself."""
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)


@once
def load_paramiko() -> None:
    """Import paramiko without `invoke`, which it needs only for programs in an ssh_config, and winhost never reads such
    a file. That saves half of the time of the import.
    """
    before = sys.modules.get("invoke")
    sys.modules["invoke"] = None  # type: ignore[assignment]  # Python's own sign of a module that cannot be imported
    try:
        import paramiko  # noqa: F401
    finally:
        del sys.modules["invoke"]
        if before is not None:
            sys.modules["invoke"] = before


def _refuse_empty_agent(host: str, login: Login) -> None:
    """Refuse an ssh-agent without keys; paramiko would only report that there is no authentication method. Raises
    UsageError: KeyUnusable.
    """
    from paramiko import Agent

    if not login.agent or login.key or login.password:
        return
    agent = Agent()
    try:
        if not agent.get_keys():
            raise unusable_key_error(
                host, "ssh-agent", "it has no key, or SSH_AUTH_SOCK names none", "ssh-add -l shows them"
            )
    finally:
        agent.close()


def private_key(host: str, login: Login) -> "PKey | None":
    """Read the private key of a logon. Raises UsageError: KeyUnusable, SecretUnreadable."""
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
    raise unusable_key_error(host, "controller key", f"{login.key}: {why}")
