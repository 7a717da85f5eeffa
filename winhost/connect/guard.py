"""Sockets with limits: every wait for a host ends in time, and no host can send without end."""

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

from winhost.connect.logged import brief, logged
from winhost.connect.wire_errors import Failure, SessionDropped, TimedOut, Unreachable, one_line
from winhost.core.dataclass import dataclass
from winhost.model.units import MiB

log = logging.getLogger(__name__)

_DISCARD = 9  # a port that nothing is sent to: it is only asked which way leads there

MOST = 8 * MiB  # what a host may send in answer to one call, with everything around it
MOST_AT_ONCE = 1 * MiB  # and in one HTTP answer: WSMan is asked for less, and XML takes a hundred times its size
_LEAST_S = 0.001
_LEAVE_S, _LEAVE_LATE_S = 5.0, 1.0  # for a good-bye: after an answer, and after the last moment for one

# On Windows the system's own numbers reach us as well.
_NO_ROUTE = {
    getattr(errno, name)
    for name in ("EHOSTUNREACH", "ENETUNREACH", "EHOSTDOWN", "ENETDOWN", "WSAEHOSTUNREACH", "WSAENETUNREACH")
    if hasattr(errno, name)
}
_REFUSED = {getattr(errno, name) for name in ("ECONNREFUSED", "WSAECONNREFUSED") if hasattr(errno, name)}
_SILENT = {getattr(errno, name) for name in ("ETIMEDOUT", "WSAETIMEDOUT") if hasattr(errno, name)}


class MakeError(Protocol):
    """Makes the error for a host to which there is no connection."""

    def __call__(self, host: str, detail: str, *, at: str, failure: Failure) -> Unreachable: ...


_Address = tuple[int, int, int, Any]  # family, type, protocol, and what `connect` takes


@dataclass
class Guard:
    """The limits of one wire. `host` and `at` name it in errors; `begin` sets how long the next piece of work may take.

    at_once: bytes that a host may send in answer to one request; a call may consist of several. timeouts: the part of
    a host in fleet.yaml that has them.

    Sockets obey it whatever library reads them: a host that sends a byte a second would keep a library for days.
    """

    host: str
    at: str
    at_once: int = MOST
    timeouts: str = "transport"
    _opening: bool = field(default=False, init=False)
    _within: float = field(default=0, init=False)
    _end: float = field(default=0, init=False)
    _received: int = field(default=0, init=False)
    _answered: int = field(default=0, init=False)

    def begin(self, within: float, *, opening: bool = False) -> None:
        """Another piece of work, of so many seconds in all. opening: of a session, in which nothing was asked yet."""
        self._opening = opening
        self._within, self._end, self._received = within, time.monotonic() + within, 0

    def leave(self) -> None:
        """Begin a good-bye, which needs no answer."""
        now = time.monotonic()
        late = max(0.0, self._end - now)
        self.begin(max(_LEAVE_LATE_S, min(_LEAVE_S, late)))

    def left(self) -> float:
        """Seconds. Raises TimedOut."""
        left = self._end - time.monotonic()
        if left <= 0:
            late = f"no answer after {self._within:.0f} s"
            raise TimedOut(self.host, late, at=self.at, opening=self._opening, timeouts=self.timeouts)
        return left

    def cap(self, seconds: float | None) -> float:
        """A time-out, shortened to the time that is left. Raises TimedOut."""
        return max(_LEAST_S, min(self.left(), seconds if seconds is not None else self._within))

    def ask(self) -> None:
        """Begin another HTTP request. Raises TimedOut."""
        self.left()
        self._answered = 0

    def took(self, count: int) -> None:
        """Count received bytes. Raises SessionDropped where they are too many."""
        self._received += count
        self._answered += count
        if self._answered > self.at_once:
            raise self._too_much(self.at_once)
        if self._received > MOST:
            raise self._too_much(MOST)

    def _too_much(self, most: int) -> SessionDropped:
        return SessionDropped(self.host, f"it sent more than {most // MiB} MiB in one answer", at=self.at)


class Guarded(socket.socket):
    """A socket that waits no longer than its guard has time."""

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
            self.guard.left()  # raises where the time of the whole call is over
            raise
        self.guard.took(count)
        return count


def guarded(kind: type[socket.socket], guard: Guard) -> type[Any]:
    """A class of sockets, or of those with TLS, that obey a guard."""
    return type(f"Guarded{kind.__name__}", (Guarded, kind), {"guard": guard})


def shown_address(address: str, port: int) -> str:
    """An address and its port, in words that keep them apart also for IPv6."""
    return f"{one_line(address)} port {port}"


def connected(
    guard: Guard,
    address: str,
    port: int,
    seconds: float,
    kind: type[socket.socket] = socket.socket,
    lost: MakeError = Unreachable,
) -> socket.socket:
    """A socket of this kind, connected within so many seconds, whichever address of the name answers.

    Raises `lost` with the kind of failure, TimedOut.
    """
    seconds = guard.cap(seconds)
    end = time.monotonic() + seconds
    with logged(log, guard.host, f"look up {brief(address)}", logging.DEBUG) as more:
        found = _looked_up(guard, address, port, end, lost)
        more.append(f"{len(found)} addresses")
    refused: OSError | None = None
    for number, (family, type_, protocol, where) in enumerate(found):
        made: socket.socket | None = None
        try:
            made = kind(family, type_, protocol)  # fails for IPv6 where this system has none
            # A share for each address: one that swallows everything must not cost the others their turn.
            made.settimeout(max(_LEAST_S, (end - time.monotonic()) / (len(found) - number)))
            with logged(log, guard.host, f"connect to {shown_address(where[0], where[1])}", logging.DEBUG):
                made.connect(where)
        except OSError as error:
            if made is not None:
                made.close()
            refused = refused or error
        else:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return made
    raise _lost(guard, lost, refused, seconds)


def own_address(toward: str) -> str:
    """The address of the interface that leads to a host. Raises OSError where none does."""
    family, kind, protocol, _, address = socket.getaddrinfo(toward, _DISCARD, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as asked:
        asked.connect(address)
        return str(asked.getsockname()[0]).partition("%")[0]


def _looked_up(guard: Guard, address: str, port: int, end: float, lost: MakeError) -> Sequence[_Address]:
    """Look up a name in a thread: the system's resolver cannot be interrupted, and is left behind when time is up."""
    found: Future[Sequence[_Address]] = Future()

    def look_up() -> None:
        try:
            listed = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
            found.set_result([(family, kind, protocol, where) for family, kind, protocol, _, where in listed])
        except (OSError, UnicodeError) as error:
            found.set_exception(error)

    Thread(target=look_up, daemon=True).start()
    try:
        return found.result(max(_LEAST_S, end - time.monotonic()))
    except NotInTime:
        why = "the name server did not answer in time"
    except OSError as error:
        why = one_line(error.strerror or error)
    except UnicodeError:
        why = "this cannot be a name"
    raise lost(guard.host, f"no address for {one_line(address)!r}: {why}", at=guard.at, failure=Failure.NAME)


def _lost(guard: Guard, lost: MakeError, error: OSError | None, seconds: float) -> Unreachable:
    detail, failure = one_line((error and error.strerror) or error or "no address"), Failure.OTHER
    if isinstance(error, TimeoutError) or (error and error.errno in _SILENT):
        detail, failure = f"no answer to the connection within {seconds:.0f} s (timed out)", Failure.SILENT
    elif error and error.errno in _REFUSED:
        failure = Failure.REFUSED
    elif error and error.errno in _NO_ROUTE:
        failure = Failure.ROUTE
    return lost(guard.host, detail, at=guard.at, failure=failure)
