"""The wire to a Windows host that opens no PowerShell session: its remote shell, through pywinrm.

Each call starts a powershell.exe, and sends all parts of the agent that it needs, so it is slower than a runspace.
"""

from collections.abc import Sequence
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING

from winhost.connect.guard import MAX_RESPONSE_BYTES, Guard
from winhost.connect.http import guard_session
from winhost.connect.libraries import (
    ReadError,
    check_ca_bundle,
    endpoint_of,
    read_fault,
    silence_libraries,
    translate_errors,
)
from winhost.connect.remote_powershell import OPTIONS, encoded_command, format_input, parse_output
from winhost.connect.sent_parts import Scripts, call_with_parts
from winhost.connect.wire_errors import SessionDropped, Unreachable, one_line
from winhost.model.fleet import Auth, Host, bracket_ipv6

if TYPE_CHECKING:
    from winrm.protocol import Protocol

POWERSHELL = "powershell.exe"
_PIECE = 100_000  # bytes in one message; as base64 with its envelope below 150 KiB, the limit of the oldest WinRM
_UTF8 = 65001


class WinrsWire:
    """One remote shell. scripts: as for PsrpWire. Raises as PsrpWire does."""

    def __init__(self, target: Host, scripts: Scripts) -> None:
        self.host = target.name
        self._target = target
        self._scripts = scripts
        self._in_use = False
        self._library = PywinrmErrors(target)
        self._guard = Guard(target.name, endpoint_of(target), MAX_RESPONSE_BYTES)
        self._protocol = _protocol(target)
        self._guard.begin(target.transport.call_timeout, opening=True)
        try:
            self._shell = translate_errors(self._library, target, Unreachable, self._open)
        except BaseException:
            self._protocol.transport.close_session()
            raise

    def invoke(self, request: str, within: float) -> str:
        """Call the agent. Raises SessionDropped, TimedOut, RemoteError."""
        self._guard.begin(within)
        return translate_errors(
            self._library, self._target, SessionDropped, lambda: call_with_parts(self._scripts, request, self._call)
        )

    def close(self) -> None:
        """Close the shell, unless a call may still run in it. See PsrpWire."""
        if not self._in_use:
            self._guard.begin_close()
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
        # The input is a pipe, because in console mode a byte 3 would act as Ctrl-C.
        command = self._protocol.run_command(
            self._shell, POWERSHELL, (*OPTIONS, encoded_command()), console_mode_stdin=False, skip_cmd_shell=True
        )
        data = format_input(self._scripts.text(parts), request)
        for start in range(0, len(data), _PIECE):
            end = start + _PIECE
            self._protocol.send_command_input(self._shell, command, data[start:end], end=end >= len(data))
        stdout, stderr, code = self._output(command)
        self._protocol.cleanup_command(self._shell, command)
        self._in_use = False
        return parse_output(self.host, self._guard.endpoint, stdout, stderr, code)

    def _output(self, command: str) -> tuple[bytes, bytes, int]:
        from winrm.exceptions import WinRMOperationTimeoutError

        stdout, stderr = b"", b""
        while True:
            remaining = self._guard.remaining()
            self._protocol.operation_timeout_sec = min(self._target.transport.operation_timeout, ceil(remaining))
            try:
                out, error, code, done = self._protocol.get_command_output_raw(self._shell, command)
            except WinRMOperationTimeoutError:
                continue  # a sign of life
            stdout, stderr = stdout + out, stderr + error
            if done:
                return stdout, stderr, code


def _protocol(target: Host) -> "Protocol":
    from winrm.protocol import Protocol

    silence_libraries()
    transport = target.transport
    check_ca_bundle(target)
    protocol = Protocol(
        f"{'https' if transport.tls else 'http'}://{bracket_ipv6(target.address)}:{transport.port}/wsman",
        transport="basic" if transport.auth == "basic" else "ntlm",
        username=transport.user,
        password=transport.password.resolve().reveal() if transport.password else None,
        server_cert_validation="validate" if transport.verify else "ignore",
        ca_trust_path=None,  # type: ignore[arg-type]  # the default reads the environment and warns; `guard_session` sets it later
        operation_timeout_sec=transport.operation_timeout,
        read_timeout_sec=transport.operation_timeout + 1,
        message_encryption="never",  # other values would log on before the session has its guard
        proxy=None,
    )
    # requests takes separate timeouts for connecting and reading; pywinrm would use one number for both.
    read_timeout = transport.operation_timeout + max(10, transport.connect_timeout)
    protocol.transport.read_timeout_sec = (transport.connect_timeout, read_timeout)  # type: ignore[assignment]
    return protocol


class PywinrmErrors:
    """Reads the errors of pywinrm."""

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
