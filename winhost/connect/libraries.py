"""Turn the errors of the WSMan libraries into ours: the same sentences whichever of them carried the call."""

import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from http.client import BadStatusLine, HTTPException, IncompleteRead, RemoteDisconnected
from pathlib import Path
from typing import Protocol, TypeVar

from winhost.connect.guard import shown_address
from winhost.connect.http import trusted
from winhost.connect.wire_errors import (
    AuthenticationFailed,
    Distrust,
    Failure,
    SessionDropped,
    TimedOut,
    Unreachable,
    WireError,
    bad_answer,
    certificate_refused,
    no_session,
    one_line,
)
from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.fleet import Host
from winhost.model.wsman import kind_of

T = TypeVar("T")
Lost = type[Unreachable] | type[SessionDropped]

_PROBE_S = 1.0
_NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}
# As OpenSSL numbers them.
_DISTRUST = {
    9: Distrust.NOT_YET_VALID,
    10: Distrust.EXPIRED,
    62: Distrust.OTHER_NAME,
    64: Distrust.OTHER_NAME,
}


@dataclass(frozen=True)
class ReadError:
    """An error of a library. detail: the host's own words, where it had some, on one line; denied: the logon itself
    succeeded, and the host then denied access.
    """

    detail: str
    failure: Failure
    refused: bool = False
    denied: bool = False


class Library(Protocol):
    """The errors of one library. They are imported with it, and only when it is used."""

    @property
    def errors(self) -> tuple[type[Exception], ...]: ...

    def read(self, error: Exception) -> ReadError: ...


def read_fault(detail: str, *, fault: object = None, status: int | None = None, refused: bool = False) -> ReadError:
    """Tell what an error is, by its text, the code of its WSMan fault, and the HTTP status."""
    kind = kind_of(fault)
    failure = Failure.STARTING if status in (429, 500, 502, 503, 504) else Failure.NOT_WSMAN
    if fault is not None:
        failure = Failure.BUSY if kind == "busy" else Failure.ENDPOINT
    return ReadError(detail, failure, refused or kind == "denied", kind == "denied")


def translated(library: Library, target: Host, lost: Lost, action: Callable[[], T]) -> T:
    """Run `action`, and raise our errors instead of the libraries'. A connection that fails is `lost`: before the first
    call unreachable, then dropped. Ours are raised when theirs are gone: those hold requests with their headers, and
    frames that hold the password.
    """
    from requests.exceptions import RequestException
    from spnego.exceptions import SpnegoError

    known: tuple[type[Exception], ...] = (RequestException, SpnegoError, OSError, *library.errors)
    try:
        return action()
    except WinhostError as error:
        ours = error
        if isinstance(error, Unreachable) and lost is SessionDropped:  # the session was open: its answer is lost
            ours = SessionDropped(error.host, error.detail, at=error.at)
        # Without what the libraries left on it, which may hold credentials.
        ours.__context__ = ours.__cause__ = None
        ours = ours.with_traceback(None)
    except known as error:
        ours = _ours(library, target, lost, error)
    except Exception as error:  # noqa: BLE001 - what libraries stumble over when something else than WinRM answers
        reason = f"what came back is no remoting ({type(error).__name__})"
        ours = _session_lost(target, lost, reason, Failure.NOT_WSMAN)
    raise ours


def quieten() -> None:
    """Silence the libraries: at DEBUG they log NTLM tokens, from which a password can be guessed offline, and all that
    the connection carries; at ERROR they print tracebacks of what we say in words.
    """
    for name in ("spnego", "pypsrp", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def at(target: Host) -> str:
    """The address and port that errors name."""
    return shown_address(target.address, target.transport.port)


def check_bundle(target: Host) -> None:
    """Raises UsageError (BundleUnusable); a library would say the same as a fault of the host."""
    bundle = trusted(target)
    if isinstance(bundle, bool) or not target.transport.tls:
        return
    try:
        if not Path(bundle).is_dir():
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(bundle)
        return
    except ssl.SSLError:
        why = "there is no certificate in it"
    except OSError as error:
        why = error.strerror or type(error).__name__
    setting = f"hosts.{target.name}.transport.verify in fleet.yaml"
    raise UsageError(
        "BundleUnusable",
        what=f"the CA bundle {visible(bundle)} for {target.name} cannot be used: {why}",
        hint=f"REQUESTS_CA_BUNDLE names it: correct that, or set {setting}."
        if isinstance(target.transport.verify, bool)
        else f"Name a PEM file at {setting}, relative to that file.",
        host=target.name,
    )


def _ours(library: Library, target: Host, lost: Lost, error: Exception) -> WireError:
    from requests.exceptions import ConnectTimeout, Timeout

    cause = _innermost(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        distrust = _DISTRUST.get(cause.verify_code, Distrust.UNTRUSTED)
        return certificate_refused(target.name, one_line(cause), at=at(target), distrust=distrust)
    if isinstance(error, Timeout) and not isinstance(error, ConnectTimeout):
        return TimedOut(target.name, one_line(cause), at=at(target), opening=lost is Unreachable)
    found = library.read(error)
    if found.refused and lost is SessionDropped:
        # The logon was good when the session began: a new session shall tell whether it still is.
        return lost(target.name, found.detail, at=at(target))
    if found.refused:
        transport = target.transport
        reason = f"{found.detail} ({'https' if transport.tls else 'http'}, port {transport.port})"
        where = transport.position_of("password")
        return AuthenticationFailed(target.name, reason, where, at=at(target), denied=found.denied)
    if isinstance(error, library.errors):
        return _session_lost(target, lost, found.detail, found.failure)
    return _cut(target, lost, cause)


def _cut(target: Host, lost: Lost, cause: BaseException) -> WireError:
    """The error for a failure before any WSMan was spoken, or after the connection was gone."""
    reason, failure = one_line(cause) or type(cause).__name__, Failure.CUT
    if isinstance(cause, ssl.SSLError) and cause.reason in _NO_TLS:
        reason, failure = f"the port does not speak TLS ({cause.reason})", Failure.NO_TLS
    elif isinstance(cause, ssl.SSLError):
        reason, failure = f"TLS could not be agreed on: {reason}", Failure.OTHER
    elif lost is Unreachable and not target.transport.tls and _speaks_tls(target, cause):
        reason, failure = "the port speaks TLS", Failure.ONLY_TLS
    elif isinstance(cause, HTTPException) and not isinstance(cause, RemoteDisconnected | IncompleteRead):
        return _session_lost(target, lost, f"what came back is no HTTP ({type(cause).__name__})", Failure.NOT_WSMAN)
    if lost is Unreachable:
        return Unreachable(target.name, reason, at=at(target), failure=failure)
    return lost(target.name, reason, at=at(target))


def _speaks_tls(target: Host, cause: BaseException) -> bool:
    """Windows closes such a connection without a word, so it is asked once more, in TLS and with nothing to say."""
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


def _session_lost(target: Host, lost: Lost, reason: str, failure: Failure) -> WireError:
    if lost is Unreachable:
        return no_session(target.name, reason, at=at(target), failure=failure)
    return lost(target.name, reason, at=at(target))


def only_output(host: str, outputs: Sequence[object]) -> str:
    """The agent's output, if it is the only one. Raises RemoteError."""
    if len(outputs) == 1 and isinstance(outputs[0], str):
        return outputs[0]
    raise bad_answer(host, f"{len(outputs)} outputs, where one text was expected", "Invoke-Winhost")


def _innermost(error: BaseException) -> BaseException:
    """Libraries wrap `Connection refused` in five layers of themselves."""
    seen = {id(error)}
    while (cause := error.__cause__ or error.__context__) is not None and id(cause) not in seen:
        seen.add(id(cause))
        error = cause
    return error
