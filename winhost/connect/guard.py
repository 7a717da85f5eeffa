"""Sockets with limits of time and size: each wait for a host ends, and no host can send endlessly."""

import errno
import logging
import socket
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import field
from threading import Thread
from typing import Any, Protocol

from winhost.connect.logged import logged, shorten
from winhost.connect.wire_errors import Failure, SessionDropped, TimedOut, Unreachable, one_line
from winhost.core.dataclass import dataclass
from winhost.model.units import MiB

log = logging.getLogger(__name__)

_DISCARD = 9  # a port for the choice of a route; nothing is sent to it

MAX_CALL_BYTES = 8 * MiB  # received in one call, with all headers and envelopes
MAX_RESPONSE_BYTES = (
    1 * MiB
)  # received in one HTTP response: WSMan requests less, and parsed XML takes a hundred times as much memory
_MIN_TIMEOUT_S = 0.001
_CLOSE_S, _CLOSE_LATE_S = 5.0, 1.0  # to close a session: in time, and after the deadline of a call

# On Windows errors may also have the system's own numbers.
_NO_ROUTE_ERRORS = {
    getattr(errno, name)
    for name in ("EHOSTUNREACH", "ENETUNREACH", "EHOSTDOWN", "ENETDOWN", "WSAEHOSTUNREACH", "WSAENETUNREACH")
    if hasattr(errno, name)
}
_REFUSED_ERRORS = {getattr(errno, name) for name in ("ECONNREFUSED", "WSAECONNREFUSED") if hasattr(errno, name)}
_SILENT_ERRORS = {getattr(errno, name) for name in ("ETIMEDOUT", "WSAETIMEDOUT") if hasattr(errno, name)}


class MakeError(Protocol):
    """Makes the error for a failed connection to a host."""

    def __call__(self, host: str, detail: str, *, endpoint: str, failure: Failure) -> Unreachable: ...


_Address = tuple[int, int, int, Any]  # family, type, protocol, and the argument of `connect`


@dataclass
class Guard:
    """The limits of one wire. host, endpoint: name it in errors; max_response: bytes that a host may send in answer to
    one request, of which a call may need several; timeouts: the part of a host in fleet.yaml that has them.

    Sockets enforce the limits whatever library uses them: a host that sends a byte each second would keep a library
    waiting for days.
    """

    host: str
    endpoint: str
    max_response: int = MAX_CALL_BYTES
    timeouts: str = "transport"
    _opening: bool = field(default=False, init=False)
    _limit: float = field(default=0, init=False)
    _end: float = field(default=0, init=False)
    _received: int = field(default=0, init=False)
    _answered: int = field(default=0, init=False)

    def begin(self, within: float, *, opening: bool = False) -> None:
        """Start a call that may take so many seconds. opening: it opens a session, and has no request yet."""
        self._opening = opening
        self._limit, self._end, self._received = within, time.monotonic() + within, 0

    def begin_close(self) -> None:
        """Start to close the session, which needs no answer."""
        now = time.monotonic()
        remaining = max(0.0, self._end - now)
        self.begin(max(_CLOSE_LATE_S, min(_CLOSE_S, remaining)))

    def remaining(self) -> float:
        """Return the seconds that remain. Raises TimedOut."""
        remaining = self._end - time.monotonic()
        if remaining <= 0:
            detail = f"no answer after {self._limit:.0f} s"
            raise TimedOut(self.host, detail, endpoint=self.endpoint, opening=self._opening, timeouts=self.timeouts)
        return remaining

    def cap(self, seconds: float | None) -> float:
        """Return a timeout, shortened to the time that remains. Raises TimedOut."""
        return max(_MIN_TIMEOUT_S, min(self.remaining(), seconds if seconds is not None else self._limit))

    def begin_request(self) -> None:
        """Start another HTTP request. Raises TimedOut."""
        self.remaining()
        self._answered = 0

    def count_received(self, count: int) -> None:
        """Count received bytes. Raises SessionDropped if there are too many."""
        self._received += count
        self._answered += count
        if self._answered > self.max_response:
            raise self._too_much(self.max_response)
        if self._received > MAX_CALL_BYTES:
            raise self._too_much(MAX_CALL_BYTES)

    def _too_much(self, most: int) -> SessionDropped:
        return SessionDropped(self.host, f"it sent more than {most // MiB} MiB in one answer", endpoint=self.endpoint)


class Guarded(socket.socket):
    """A socket that waits no longer than its guard allows."""

    guard: Guard
    _requested: float | None = None

    def settimeout(self, value: float | None) -> None:
        self._requested = value
        super().settimeout(value)

    def send(self, *args: Any) -> int:
        super().settimeout(self.guard.cap(self._requested))
        return super().send(*args)

    def sendall(self, *args: Any) -> None:
        super().settimeout(self.guard.cap(self._requested))
        super().sendall(*args)

    def recv_into(self, *args: Any) -> int:
        super().settimeout(self.guard.cap(self._requested))
        try:
            count = super().recv_into(*args)
        except TimeoutError:
            self.guard.remaining()  # raises if the time of the whole call is over
            raise
        self.guard.count_received(count)
        return count


def guarded_class(kind: type[socket.socket], guard: Guard) -> type[Any]:
    """Return a subclass of a socket class, with or without TLS, that obeys a guard."""
    return type(f"Guarded{kind.__name__}", (Guarded, kind), {"guard": guard})


def format_address(address: str, port: int) -> str:
    """Format an address and its port so that they are distinct for IPv6 too."""
    return f"{one_line(address)} port {port}"


def connect_socket(
    guard: Guard,
    address: str,
    port: int,
    seconds: float,
    kind: type[socket.socket] = socket.socket,
    make_error: MakeError = Unreachable,
) -> socket.socket:
    """Connect a socket of this kind to any address of a name, within so many seconds.

    Raises the error of `make_error`, TimedOut.
    """
    seconds = guard.cap(seconds)
    end = time.monotonic() + seconds
    with logged(log, guard.host, f"look up {shorten(address)}", logging.DEBUG) as details:
        addresses = _resolve(guard, address, port, end, make_error)
        details.append(f"{len(addresses)} addresses")
    first_error: OSError | None = None
    for number, (family, type_, protocol, target) in enumerate(addresses):
        connection: socket.socket | None = None
        try:
            connection = kind(family, type_, protocol)  # fails for IPv6 where this system has none
            # A share of the time for each address, so that a silent one does not use the time of the others.
            connection.settimeout(max(_MIN_TIMEOUT_S, (end - time.monotonic()) / (len(addresses) - number)))
            with logged(log, guard.host, f"connect to {format_address(target[0], target[1])}", logging.DEBUG):
                connection.connect(target)
        except OSError as error:
            if connection is not None:
                connection.close()
            first_error = first_error or error
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
    raise _connection_error(guard, make_error, first_error, seconds)


def local_address(host_address: str) -> str:
    """Return the address of the interface with the route to a host. Raises OSError if there is none."""
    family, kind, protocol, _, address = socket.getaddrinfo(host_address, _DISCARD, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0]).partition("%")[0]


def _resolve(guard: Guard, address: str, port: int, end: float, make_error: MakeError) -> Sequence[_Address]:
    """Look up a name in a thread, which is abandoned at the deadline: the system's resolver cannot be interrupted."""
    future: Future[Sequence[_Address]] = Future()

    def resolve() -> None:
        try:
            addresses = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
            future.set_result([(family, kind, protocol, target) for family, kind, protocol, _, target in addresses])
        except (OSError, UnicodeError) as error:
            future.set_exception(error)

    Thread(target=resolve, daemon=True).start()
    try:
        return future.result(max(_MIN_TIMEOUT_S, end - time.monotonic()))
    except NotInTime:
        reason = "the name server did not answer in time"
    except OSError as error:
        reason = one_line(error.strerror or error)
    except UnicodeError:
        reason = "this cannot be a name"
    raise make_error(
        guard.host, f"no address for {one_line(address)!r}: {reason}", endpoint=guard.endpoint, failure=Failure.NAME
    )


def _connection_error(guard: Guard, make_error: MakeError, error: OSError | None, seconds: float) -> Unreachable:
    detail, failure = one_line((error and error.strerror) or error or "no address"), Failure.OTHER
    if isinstance(error, TimeoutError) or (error and error.errno in _SILENT_ERRORS):
        detail, failure = f"no answer to the connection within {seconds:.0f} s (timed out)", Failure.SILENT
    elif error and error.errno in _REFUSED_ERRORS:
        failure = Failure.REFUSED
    elif error and error.errno in _NO_ROUTE_ERRORS:
        failure = Failure.ROUTE
    return make_error(guard.host, detail, endpoint=guard.endpoint, failure=failure)
