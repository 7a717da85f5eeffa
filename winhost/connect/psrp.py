"""The wire to a Windows host: PowerShell remoting through pypsrp, one runspace per host and command."""

from collections.abc import Sequence
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING, Any

from winhost.connect.guard import MAX_RESPONSE_BYTES, Guard
from winhost.connect.http import guard_session
from winhost.connect.libraries import (
    ReadError,
    check_ca_bundle,
    endpoint_of,
    read_fault,
    silence_libraries,
    single_output,
    translate_errors,
)
from winhost.connect.sent_parts import Scripts, call_with_parts
from winhost.connect.wire_errors import RemoteError, SessionDropped, Unreachable, one_line
from winhost.core.answers import RemoteFault
from winhost.model.fleet import Auth, Host

if TYPE_CHECKING:
    from pypsrp.wsman import WSMan


class PsrpWire:
    """One runspace. Basic authentication is used only inside TLS or to loopback; the fleet file refuses others.

    A call also sends the parts of `scripts` that it needs and that the runspace does not have yet. Raises Unreachable,
    CertificateRefused, AuthenticationFailed, TimedOut.
    """

    def __init__(self, target: Host, scripts: Scripts) -> None:
        from pypsrp.powershell import RunspacePool

        self.host = target.name
        self._target = target
        self._scripts = scripts
        self._loaded_parts: frozenset[str] = frozenset()  # the parts that the runspace has
        self._in_use = False
        self._guard = Guard(target.name, endpoint_of(target), MAX_RESPONSE_BYTES)
        self._wsman = _wsman(target, self._guard)
        self._pool: RunspacePool = RunspacePool(self._wsman)
        self._guard.begin(target.transport.call_timeout, opening=True)
        try:
            translate_errors(PypsrpErrors(), target, Unreachable, self._pool.open)
        except BaseException:
            self.close()
            raise

    def invoke(self, request: str, within: float) -> str:
        """Call the agent. Raises SessionDropped, TimedOut, RemoteError."""
        self._guard.begin(within)
        return translate_errors(
            PypsrpErrors(), self._target, SessionDropped, lambda: call_with_parts(self._scripts, request, self._run)
        )

    def close(self) -> None:
        """Close the runspace. One in which a call may still run is not closed, because that would stop the call
        half-way; the host removes it later.
        """
        if not self._in_use:
            self._guard.begin_close()
            with suppress(Exception):
                self._pool.close()
        self._wsman.close()

    def _run(self, parts: Sequence[str], request: str) -> str:
        from pypsrp.complex_objects import PSInvocationState
        from pypsrp.powershell import PowerShell

        shell = PowerShell(self._pool)
        if unsent := [part for part in parts if part not in self._loaded_parts]:
            # In the runspace's own scope, so that the definitions stay. A separate pipeline for them would cost each
            # command two more round trips.
            shell.add_script(_script_element(self._scripts.text(unsent)), use_local_scope=False).add_argument(request)
        else:
            shell.add_cmdlet("Invoke-Winhost").add_parameter("Json", request)
        self._in_use = True
        shell.begin_invoke()
        while shell.state == PSInvocationState.RUNNING:
            remaining = self._guard.remaining()
            ends_first = remaining < self._target.transport.operation_timeout
            shell.poll_invoke(timeout=ceil(remaining) if ends_first else None)
        self._in_use = False
        if shell.state == PSInvocationState.STOPPED:
            raise SessionDropped(self.host, "the call was stopped on the host", endpoint=self._guard.endpoint)
        if shell.had_errors:
            raise RemoteError(self.host, _first_error(shell.streams.error), "run the agent")
        self._loaded_parts |= {*unsent}
        return single_output(self.host, list(shell.output))


def _script_element(scripts: str) -> Any:
    """Return the text as an XML element, which pypsrp sends as it is.

    In a plain text pypsrp would escape each line feed as `_x000A_`, 6 bytes more in each of 5,000 lines. XML keeps a
    line feed, and the parts have no other character that PowerShell needs escaped.
    """
    from xml.etree.ElementTree import Element

    element = Element("S")
    element.text = scripts
    return element


def _wsman(target: Host, guard: Guard) -> "WSMan":
    from pypsrp.wsman import WSMan

    silence_libraries()
    transport = target.transport
    check_ca_bundle(target)
    password = transport.password.resolve().reveal() if transport.password else None
    wsman = WSMan(
        target.address,
        port=transport.port,
        username=transport.user,
        password=password,
        ssl=transport.tls,
        auth="basic" if transport.auth is Auth.BASIC else transport.auth.value,
        cert_validation=bool(transport.verify),
        # Basic cannot encrypt by itself: the fleet file allows it without TLS on loopback only.
        encryption="never" if transport.auth is Auth.BASIC and not transport.tls else "auto",
        connection_timeout=int(transport.connect_timeout),
        operation_timeout=int(transport.operation_timeout),
        # The host holds a call open for one operation timeout; give its answer time to arrive.
        read_timeout=int(transport.operation_timeout + max(10, transport.connect_timeout)),
        # A silent host is tried five times more, with doubling pauses: long ones would exceed the call's deadline.
        reconnection_backoff=0.25,
    )
    transport_adapter = wsman.transport
    transport_adapter.session = transport_adapter._build_session()
    guard_session(transport_adapter.session, target, guard)
    return wsman


def _first_error(errors: list[Any]) -> RemoteFault:
    """Return the error that ended the pipeline before the agent could answer."""
    from psrpcore.types import ErrorCategory

    if not errors:
        return RemoteFault("NotSpecified")
    first = errors[0]
    category = next((known.name for known in ErrorCategory if known == first.category), "NotSpecified")
    return RemoteFault(category, code=str(first.fq_error or ""), message=one_line(first))


class PypsrpErrors:
    """Reads the errors of pypsrp."""

    def __init__(self) -> None:
        from pypsrp.exceptions import WinRMError

        self.errors = (WinRMError,)

    def read(self, error: Exception) -> ReadError:
        from pypsrp.exceptions import AuthenticationError, WinRMTransportError, WSManFaultError
        from spnego.exceptions import SpnegoError

        if isinstance(error, WinRMTransportError):
            return read_fault(f"HTTP {error.code}", status=error.code)
        detail = one_line(error)[:300]
        if not isinstance(error, WSManFaultError):
            return read_fault(detail, refused=isinstance(error, AuthenticationError | SpnegoError))
        if isinstance(error.code, int):
            detail = f"{one_line(error.reason or 'WSMan fault')} (0x{error.code:08X})"
        return read_fault(detail, fault=error.code)
