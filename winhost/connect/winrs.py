"""The wire to a Windows host that opens no PowerShell session: its remote shell, through pywinrm.

Each call is a powershell.exe of its own, and sends all parts of the agent that it needs, so it is slower than a
runspace.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING

from winhost.connect.guard import MOST_AT_ONCE, Guard
from winhost.connect.http import guard_session
from winhost.connect.libraries import at, check_bundle, failure_of, quieten, translated
from winhost.connect.remote_powershell import OPTIONS, answer_of, encoded_command, input_of
from winhost.connect.sent_parts import Scripts, ask
from winhost.connect.wire_errors import Failure, SessionDropped, Unreachable, one_line
from winhost.model.fleet import Auth, Host, in_url
from winhost.model.wsman import kind_of

if TYPE_CHECKING:
    from winrm.protocol import Protocol

POWERSHELL = "powershell.exe"
_PIECE = 100_000  # bytes in one message: as base64, with its envelope, below the 150 KiB of the oldest WinRM
_UTF8 = 65001


class WinrsWire:
    """One remote shell. `scripts`: as PsrpWire has them. Raises what that raises."""

    def __init__(self, target: Host, scripts: Scripts) -> None:
        self.host = target.name
        self._target = target
        self._scripts = scripts
        self._in_use = False
        self._library = Pywinrm(target)
        self._guard = Guard(target.name, at(target), MOST_AT_ONCE)
        self._protocol = _protocol(target)
        self._guard.begin(target.transport.call_timeout, opening=True)
        try:
            self._shell = translated(self._library, target, Unreachable, self._open)
        except BaseException:
            self._protocol.transport.close_session()
            raise

    def invoke(self, request: str, within: float) -> str:
        """One call of the agent. Raises SessionDropped, TimedOut, RemoteError."""
        self._guard.begin(within)
        return translated(self._library, self._target, SessionDropped, lambda: ask(self._scripts, request, self._call))

    def close(self) -> None:
        """Close the shell, unless a call may still run in it: that would be ended half-way; see PsrpWire."""
        if not self._in_use:
            self._guard.leave()
            with suppress(Exception):
                self._protocol.close_shell(self._shell)
        self._protocol.transport.close_session()

    def _open(self) -> str:
        transport = self._protocol.transport
        session = transport.build_session()
        guard_session(session, self._target, self._guard)
        if _seals(self._target):
            transport.setup_encryption(session)
        return self._protocol.open_shell(noprofile=True, codepage=_UTF8)

    def _call(self, parts: Sequence[str], request: str) -> str:
        self._in_use = True
        stdout, stderr, code = self._run(self._scripts.text(parts), request)
        self._in_use = False
        return answer_of(self.host, self._guard.at, stdout, stderr, code)

    def _run(self, script: str, request: str) -> tuple[bytes, bytes, int]:
        # The input as a pipe: in console mode a Ctrl-C in the bytes would be one.
        command = self._protocol.run_command(
            self._shell, POWERSHELL, (*OPTIONS, encoded_command()), console_mode_stdin=False, skip_cmd_shell=True
        )
        for piece, last in _pieces(input_of(script, request)):
            self._protocol.send_command_input(self._shell, command, piece, end=last)
        ended = self._output(command)
        self._protocol.cleanup_command(self._shell, command)
        return ended

    def _output(self, command: str) -> tuple[bytes, bytes, int]:
        from winrm.exceptions import WinRMOperationTimeoutError

        stdout, stderr = b"", b""
        while True:
            left = self._guard.left()
            self._protocol.operation_timeout_sec = min(self._target.transport.operation_timeout, ceil(left))
            try:
                out, error, code, done = self._protocol.get_command_output_raw(self._shell, command)
            except WinRMOperationTimeoutError:
                continue  # a sign of life
            stdout, stderr = stdout + out, stderr + error
            if done:
                return stdout, stderr, code


def _pieces(data: bytes) -> Iterator[tuple[bytes, bool]]:
    for start in range(0, len(data), _PIECE):
        yield data[start : start + _PIECE], start + _PIECE >= len(data)


def _seals(target: Host) -> bool:
    """Tell whether the logon seals messages: Basic cannot, and inside TLS it is not needed."""
    return not target.transport.tls and target.transport.auth is not Auth.BASIC


def _protocol(target: Host) -> "Protocol":
    from winrm.protocol import Protocol

    quieten()
    transport = target.transport
    check_bundle(target)
    protocol = Protocol(
        f"{'https' if transport.tls else 'http'}://{in_url(target.address)}:{transport.port}/wsman",
        transport="basic" if transport.auth == "basic" else "ntlm",
        username=transport.user,
        password=transport.password.resolve().reveal() if transport.password else None,
        server_cert_validation="validate" if transport.verify else "ignore",
        ca_trust_path=None,  # type: ignore[arg-type]  # its default obeys the environment with a warning; ours comes later
        operation_timeout_sec=transport.operation_timeout,
        read_timeout_sec=transport.operation_timeout + 1,
        message_encryption="never",  # with anything else it would log on before the session is guarded
        proxy=None,
    )
    # For connecting and for reading, as requests takes them; pywinrm's one number would be both.
    read_timeout = transport.operation_timeout + max(10, transport.connect_timeout)
    protocol.transport.read_timeout_sec = (transport.connect_timeout, read_timeout)  # type: ignore[assignment]
    return protocol


class Pywinrm:
    """The errors of pywinrm."""

    def __init__(self, target: Host) -> None:
        from winrm.exceptions import WinRMError, WinRMOperationTimeoutError, WinRMTransportError

        self._transport = target.transport
        self.errors = (WinRMError, WinRMOperationTimeoutError, WinRMTransportError)

    def refuses_logon(self, error: Exception) -> bool:
        from spnego.exceptions import SpnegoError
        from winrm.exceptions import AuthenticationError, WSManFaultError

        denied = isinstance(error, WSManFaultError) and kind_of(error.wsman_fault_code) == "denied"
        return denied or isinstance(error, AuthenticationError | SpnegoError)

    def denies(self, error: Exception) -> bool:
        return kind_of(getattr(error, "wsman_fault_code", None)) == "denied"

    def failure(self, error: Exception) -> Failure:
        from winrm.exceptions import WinRMTransportError, WSManFaultError

        if isinstance(error, WSManFaultError):
            return failure_of(None, error.wsman_fault_code or error.fault_code)
        return failure_of(error.code if isinstance(error, WinRMTransportError) else None, None)

    def describe(self, error: Exception) -> str:
        from winrm.exceptions import AuthenticationError, WinRMTransportError, WSManFaultError

        if isinstance(error, AuthenticationError):
            return one_line(f"Failed to authenticate the user {self._transport.user} with {self._transport.auth}")
        if isinstance(error, WinRMTransportError):
            return f"HTTP {error.code}"
        if isinstance(error, WSManFaultError) and error.wsman_fault_code is not None:
            return f"{one_line(error.reason)} (0x{error.wsman_fault_code:08X})"
        return one_line(error)[:300]
