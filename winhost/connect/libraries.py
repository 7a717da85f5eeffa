"""What a library for WSMan raises, as our errors: the same sentences whichever of them carried the call."""

import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from winhost.connect.errors import (
    AuthenticationFailed,
    BundleUnusable,
    CertificateRefused,
    NoSession,
    SessionDropped,
    TimedOut,
    Unreachable,
    WireError,
    one_line,
)
from winhost.model.fleet import Host

T = TypeVar("T")
Lost = type[Unreachable] | type[SessionDropped]

ACCESS_DENIED = 5  # the WSMan fault of a logon that is right, by somebody who may not come in this way


class Library(Protocol):
    """How one library says what went wrong. Its errors are imported with it, and only when it is used."""

    @property
    def errors(self) -> tuple[type[Exception], ...]: ...

    def refuses_logon(self, error: Exception) -> bool: ...

    def said(self, error: Exception) -> str:
        """The host's words where it had some, on one line."""


def translated(library: Library, target: Host, lost: Lost, work: Callable[[], T]) -> T:
    """What `work` returns, with our errors for the libraries'.

    A wire that fails is `lost`: before the first call unreachable, then dropped. Ours are raised when theirs are gone:
    those hold requests with their headers, and frames that hold the password.
    """
    from xml.etree.ElementTree import ParseError

    from requests.exceptions import RequestException
    from spnego.exceptions import SpnegoError

    known: tuple[type[Exception], ...] = (RequestException, SpnegoError, OSError, *library.errors)
    try:
        return work()
    except known as error:
        ours = _ours(library, target, lost, error)
    except (ParseError, LookupError, ValueError, AttributeError, StopIteration, AssertionError) as error:
        # What the libraries stumble over when something else than WinRM answers.
        ours = _session_lost(target, lost, f"what came back is no remoting ({type(error).__name__})")
    raise ours


def quieten() -> None:
    """At DEBUG these log NTLM tokens, from which a password can be guessed offline, and all that the wire carries."""
    for name in ("spnego", "pypsrp"):
        logging.getLogger(name).setLevel(logging.WARNING)


def check_bundle(target: Host) -> None:
    """Raises BundleUnusable; a library would say the same as a fault of the host."""
    path = target.transport.verify
    if isinstance(path, bool) or not target.transport.tls:
        return
    try:
        _load(path)
    except ssl.SSLError:
        raise BundleUnusable(target.name, str(path), "there is no certificate in it") from None
    except OSError as error:
        raise BundleUnusable(target.name, str(path), error.strerror or type(error).__name__) from None


def _load(path: Path) -> None:
    if not path.is_dir():
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)


def _ours(library: Library, target: Host, lost: Lost, error: Exception) -> WireError:
    from requests.exceptions import ConnectTimeout, SSLError, Timeout

    cause = _innermost(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return CertificateRefused(target.name, one_line(cause))
    if isinstance(error, SSLError):
        return lost(target.name, f"no TLS at port {target.transport.port}: {one_line(cause)}")
    if isinstance(error, Timeout) and not isinstance(error, ConnectTimeout):
        return TimedOut(target.name, one_line(cause))
    if library.refuses_logon(error):
        return _logon_refused(library, target, lost, error)
    if isinstance(error, library.errors):
        return _session_lost(target, lost, library.said(error))
    return lost(target.name, one_line(cause) or type(cause).__name__)


def _logon_refused(library: Library, target: Host, lost: Lost, error: Exception) -> WireError:
    if lost is SessionDropped:
        # The logon was good when the session began: a new session shall tell whether it still is.
        return lost(target.name, library.said(error))
    transport = target.transport
    way = f"{'https' if transport.tls else 'http'}, port {transport.port}"
    return AuthenticationFailed(target.name, f"{library.said(error)} ({way})", transport.password_at)


def _session_lost(target: Host, lost: Lost, said: str) -> WireError:
    return (NoSession if lost is Unreachable else lost)(target.name, said)


def _innermost(error: BaseException) -> BaseException:
    """Libraries wrap `Connection refused` in five layers of themselves."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error
