"""The wire to a Windows host that opens no PowerShell session: its remote shell, through pywinrm.

Each call is a powershell.exe of its own, and sends all parts of the agent that it needs, so it is slower than a
runspace.
"""

from collections.abc import Sequence
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING

from winhost.connect.guard import MOST_AT_ONCE, Guard
from winhost.connect.http import guard_session
from winhost.connect.libraries import ReadError, at, check_bundle, quieten, read_fault, translated
from winhost.connect.remote_powershell import OPTIONS, answer_of, encoded_command, input_of
from winhost.connect.sent_parts import Scripts, ask
from winhost.connect.wire_errors import SessionDropped, Unreachable, one_line
from winhost.model.fleet import Auth, Host, bracket_ipv6

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
        if not self._target.transport.tls and self._target.transport.auth is not Auth.BASIC:
            transport.setup_encryption(session)  # Basic cannot seal messages, and inside TLS it is not needed
        return self._protocol.open_shell(noprofile=True, codepage=_UTF8)

    def _call(self, parts: Sequence[str], request: str) -> str:
        self._in_use = True
        # The input as a pipe: in console mode a Ctrl-C in the bytes would be one.
        command = self._protocol.run_command(
            self._shell, POWERSHELL, (*OPTIONS, encoded_command()), console_mode_stdin=False, skip_cmd_shell=True
        )
        data = input_of(self._scripts.text(parts), request)
        for start in range(0, len(data), _PIECE):
            end = start + _PIECE
            self._protocol.send_command_input(self._shell, command, data[start:end], end=end >= len(data))
        stdout, stderr, code = self._output(command)
        self._protocol.cleanup_command(self._shell, command)
        self._in_use = False
        return answer_of(self.host, self._guard.at, stdout, stderr, code)

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


def _protocol(target: Host) -> "Protocol":
    from winrm.protocol import Protocol

    quieten()
    transport = target.transport
    check_bundle(target)
    protocol = Protocol(
        f"{'https' if transport.tls else 'http'}://{bracket_ipv6(target.address)}:{transport.port}/wsman",
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

    def read(self, error: Exception) -> ReadError:
        from spnego.exceptions import SpnegoError
        from winrm.exceptions import AuthenticationError, WinRMTransportError, WSManFaultError

        detail = one_line(error)[:300]
        if isinstance(error, AuthenticationError):
            detail = one_line(f"Failed to authenticate the user {self._transport.user} with {self._transport.auth}")
        elif isinstance(error, WinRMTransportError):
            return read_fault(f"HTTP {error.code}", status=error.code)
        elif isinstance(error, WSManFaultError):
            if error.wsman_fault_code is not None:
                detail = f"{one_line(error.reason)} (0x{error.wsman_fault_code:08X})"
            return read_fault(detail, fault=error.wsman_fault_code or error.fault_code)
        return read_fault(detail, refused=isinstance(error, AuthenticationError | SpnegoError))
