"""Translate the errors of the WSMan libraries to winhost's, with the same sentences for both."""

import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from http.client import BadStatusLine, HTTPException, IncompleteRead, RemoteDisconnected
from pathlib import Path
from typing import Protocol, TypeVar

from winhost.connect.guard import format_address
from winhost.connect.http import trusted_certificates
from winhost.connect.wire_errors import (
    AuthenticationFailed,
    Distrust,
    Failure,
    SessionDropped,
    TimedOut,
    Unreachable,
    WireError,
    bad_answer_error,
    certificate_error,
    no_session_error,
    one_line,
)
from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.fleet import Host
from winhost.model.wsman import kind_of

T = TypeVar("T")
LostError = type[Unreachable] | type[SessionDropped]

_PROBE_S = 1.0
_NO_TLS_REASONS = {
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "UNKNOWN_PROTOCOL",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
}
# By the numbers of OpenSSL.
_DISTRUST = {9: Distrust.NOT_YET_VALID, 10: Distrust.EXPIRED, 62: Distrust.OTHER_NAME, 64: Distrust.OTHER_NAME}


@dataclass(frozen=True)
class ReadError:
    """A library's error, as read. detail: the host's own words, if any, on one line; refused: the host refused the
    logon; denied: the logon succeeded, and the host then denied access.
    """

    detail: str
    failure: Failure
    refused: bool = False
    denied: bool = False


class Library(Protocol):
    """Reads the errors of one library, which are imported only when it is used."""

    @property
    def errors(self) -> tuple[type[Exception], ...]: ...

    def read(self, error: Exception) -> ReadError: ...


def read_fault(detail: str, *, fault: object = None, status: int | None = None, refused: bool = False) -> ReadError:
    """Classify an error by its text, the code of its WSMan fault, and the HTTP status."""
    kind = kind_of(fault)
    failure = Failure.STARTING if status in (429, 500, 502, 503, 504) else Failure.NOT_WSMAN
    if fault is not None:
        failure = Failure.BUSY if kind == "busy" else Failure.ENDPOINT
    return ReadError(detail, failure, refused or kind == "denied", kind == "denied")


def translate_errors(library: Library, target: Host, error_type: LostError, action: Callable[[], T]) -> T:
    """Run `action`, and raise winhost's errors instead of the library's. error_type: of a failed connection,
    Unreachable before the first call and SessionDropped after it. The library's errors are not chained, because they
    hold requests with their headers, and frames with the password.
    """
    from requests.exceptions import RequestException
    from spnego.exceptions import SpnegoError

    library_errors: tuple[type[Exception], ...] = (RequestException, SpnegoError, OSError, *library.errors)
    try:
        return action()
    except WinhostError as error:
        translated = error
        if (
            isinstance(error, Unreachable) and error_type is SessionDropped
        ):  # the session was open, so its answer is lost
            translated = SessionDropped(error.host, error.detail, endpoint=error.endpoint)
        # The library's context may hold credentials.
        translated.__context__ = translated.__cause__ = None
        translated = translated.with_traceback(None)
    except library_errors as error:
        translated = _translate(library, target, error_type, error)
    except Exception as error:  # noqa: BLE001 - libraries raise anything if the answer is not of WinRM
        reason = f"what came back is no remoting ({type(error).__name__})"
        translated = _session_error(target, error_type, reason, Failure.NOT_WSMAN)
    raise translated


def silence_libraries() -> None:
    """Silence the libraries. At DEBUG they log all messages, also NTLM tokens, from which a password can be guessed
    offline; at ERROR they print tracebacks of errors that winhost reports itself.
    """
    for name in ("spnego", "pypsrp", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def endpoint_of(target: Host) -> str:
    """Return the address and port for errors."""
    return format_address(target.address, target.transport.port)


def check_ca_bundle(target: Host) -> None:
    """Check the CA bundle, because a library would report a bad one as a fault of the host. Raises UsageError
    (BundleUnusable).
    """
    bundle = trusted_certificates(target)
    if isinstance(bundle, bool) or not target.transport.tls:
        return
    try:
        if not Path(bundle).is_dir():
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(bundle)
        return
    except ssl.SSLError:
        reason = "there is no certificate in it"
    except OSError as error:
        reason = error.strerror or type(error).__name__
    setting = f"hosts.{target.name}.transport.verify in fleet.yaml"
    raise UsageError(
        "BundleUnusable",
        what=f"the CA bundle {visible(bundle)} for {target.name} cannot be used: {reason}",
        hint=f"REQUESTS_CA_BUNDLE names it: correct that, or set {setting}."
        if isinstance(target.transport.verify, bool)
        else f"Name a PEM file at {setting}, relative to that file.",
        host=target.name,
    )


def _translate(library: Library, target: Host, error_type: LostError, error: Exception) -> WireError:
    from requests.exceptions import ConnectTimeout, Timeout

    cause = _root_cause(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        distrust = _DISTRUST.get(cause.verify_code, Distrust.UNTRUSTED)
        return certificate_error(target.name, one_line(cause), endpoint=endpoint_of(target), distrust=distrust)
    if isinstance(error, Timeout) and not isinstance(error, ConnectTimeout):
        return TimedOut(target.name, one_line(cause), endpoint=endpoint_of(target), opening=error_type is Unreachable)
    read = library.read(error)
    if read.refused and error_type is SessionDropped:
        # The logon was accepted when the session began. A new session will show whether it still is.
        return error_type(target.name, read.detail, endpoint=endpoint_of(target))
    if read.refused:
        transport = target.transport
        reason = f"{read.detail} ({'https' if transport.tls else 'http'}, port {transport.port})"
        setting = transport.position_of("password")
        return AuthenticationFailed(target.name, reason, setting, endpoint=endpoint_of(target), denied=read.denied)
    if isinstance(error, library.errors):
        return _session_error(target, error_type, read.detail, read.failure)
    return _connection_error(target, error_type, cause)


def _connection_error(target: Host, error_type: LostError, cause: BaseException) -> WireError:
    """Make the error for a failure before the first WSMan message, or after the connection was lost."""
    reason, failure = one_line(cause) or type(cause).__name__, Failure.CUT
    if isinstance(cause, ssl.SSLError) and cause.reason in _NO_TLS_REASONS:
        reason, failure = f"the port does not speak TLS ({cause.reason})", Failure.NO_TLS
    elif isinstance(cause, ssl.SSLError):
        reason, failure = f"TLS could not be agreed on: {reason}", Failure.OTHER
    elif error_type is Unreachable and not target.transport.tls and _speaks_tls(target, cause):
        reason, failure = "the port speaks TLS", Failure.ONLY_TLS
    elif isinstance(cause, HTTPException) and not isinstance(cause, RemoteDisconnected | IncompleteRead):
        return _session_error(
            target, error_type, f"what came back is no HTTP ({type(cause).__name__})", Failure.NOT_WSMAN
        )
    if error_type is Unreachable:
        return Unreachable(target.name, reason, endpoint=endpoint_of(target), failure=failure)
    return error_type(target.name, reason, endpoint=endpoint_of(target))


def _speaks_tls(target: Host, cause: BaseException) -> bool:
    """Tell whether the port speaks TLS, by a second connection: Windows closes a plain one without an answer."""
    if isinstance(cause, HTTPException) and not isinstance(cause, BadStatusLine):
        return False
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((target.address, target.transport.port), timeout=_PROBE_S) as plain,
            context.wrap_socket(plain),
        ):
            return True
    except OSError:
        return False


def _session_error(target: Host, error_type: LostError, reason: str, failure: Failure) -> WireError:
    if error_type is Unreachable:
        return no_session_error(target.name, reason, endpoint=endpoint_of(target), failure=failure)
    return error_type(target.name, reason, endpoint=endpoint_of(target))


def single_output(host: str, outputs: Sequence[object]) -> str:
    """Return the agent's output. Raises RemoteError unless there is exactly one."""
    if len(outputs) == 1 and isinstance(outputs[0], str):
        return outputs[0]
    raise bad_answer_error(host, f"{len(outputs)} outputs, where one text was expected", "Invoke-Winhost")


def _root_cause(error: BaseException) -> BaseException:
    """Return the innermost cause of an error, which libraries wrap in up to five layers."""
    visited = {id(error)}
    while (cause := error.__cause__ or error.__context__) is not None and id(cause) not in visited:
        visited.add(id(cause))
        error = cause
    return error
