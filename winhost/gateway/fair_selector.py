"""Limit how many ready sockets one turn of the event loop handles: all engines, but only some clients.

However many connections send something or close at the same time, a stream waits for only a few of them.
"""

import math
import os
import select
import selectors
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

# Clients in one turn: those with a valid key, and those without one, whose TLS handshakes take longest.
WITH_KEY, WITHOUT_KEY = 16, 4
# The results of a reader: it read nothing, so that asyncio has to; it read all, and a callback is due; it read all, and
# the event loop has nothing to do.
NOTHING, DONE, QUIET = range(3)
_MASKS = {
    each: (each & selectors.EVENT_READ and select.EPOLLIN) | (each & selectors.EVENT_WRITE and select.EPOLLOUT)
    for each in range(1, 4)
}
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT


class _Watched:
    """A socket that asyncio does not know. events: the events that epoll watches, 0: none."""

    __slots__ = ("epoll", "events", "on_ready")

    def __init__(self, on_ready: Callable[[int], object], epoll: select.epoll) -> None:
        self.on_ready, self.epoll, self.events = on_ready, epoll, 0


class FairSelector(selectors.BaseSelector):
    """asyncio's selector with one more epoll for each limit. The kernel rotates the ready sockets of an epoll."""

    def __init__(self) -> None:
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._watched: dict[int, _Watched] = {}
        self._max_events = 1
        self._unlimited = select.epoll()
        self._limited = {per_turn: select.epoll() for per_turn in (WITH_KEY, WITHOUT_KEY)}
        self._limits_by_epoll = {each.fileno(): per_turn for per_turn, each in self._limited.items()}
        for fd in self._limits_by_epoll:
            self._unlimited.register(fd, _IN)
        self._limits: dict[int, tuple[int, int]] = {}
        self._epolls: dict[int, select.epoll] = {}
        self._readers: dict[int, Callable[[], int]] = {}

    def read_by(self, fd: int, read: "Callable[[], int]") -> None:
        """Read this socket with `read` as long as it stays registered, at half the cost of asyncio. read: returns
        NOTHING, DONE or QUIET.
        """
        if fd in self._keys:
            self._readers[fd] = read

    def watch(self, fd: int, on_ready: "Callable[[int], object]", per_turn: int = 0) -> None:
        """Watch a socket without asyncio. on_ready: called with epoll's mask; per_turn: as for `limit`, 0: no limit."""
        self._watched[fd] = _Watched(on_ready, self._limited[per_turn] if per_turn else self._unlimited)
        self._max_events = max(self._max_events, len(self._keys) + len(self._watched) + len(self._limited))

    def set_events(self, fd: int, events: int) -> None:
        """Set the events of epoll for a watched socket; 0: none."""
        watched = self._watched[fd]
        if not events:
            watched.epoll.unregister(fd)
        elif watched.events:
            watched.epoll.modify(fd, events)
        else:
            watched.epoll.register(fd, events)
        watched.events = events

    def unwatch(self, fd: int) -> None:
        """Stop watching a socket that is about to be closed."""
        self._watched.pop(fd, None)

    def limit(self, fd: int, per_turn: int) -> None:
        """Handle at most this many such sockets in one turn. The socket may be registered later."""
        if watched := self._watched.get(fd):
            events = watched.events
            if events:
                self.set_events(fd, 0)
            watched.epoll = self._limited[per_turn]
            if events:
                self.set_events(fd, events)
            return
        with suppress(OSError):  # its client has just closed it
            self._limits[fd] = per_turn, os.fstat(fd).st_ino
            if key := self._keys.get(fd):
                self._epolls[fd].unregister(fd)
                self._register(fd, key.events)

    def _register(self, fd: int, events: int) -> None:
        per_turn, socket = self._limits.get(fd, (0, 0))
        if per_turn and socket != os.fstat(fd).st_ino:  # another socket has this number now
            del self._limits[fd]
            per_turn = 0
        epoll = self._limited[per_turn] if per_turn else self._unlimited
        epoll.register(fd, _MASKS[events])
        self._epolls[fd] = epoll

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = _fd_of(fileobj)
        if fd in self._keys:
            raise KeyError(f"{fd} is registered already")
        self._register(fd, events)
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        self._max_events = max(self._max_events, len(self._keys) + len(self._watched) + len(self._limited))
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        fd = _fd_of(fileobj)
        key = self._keys.pop(fd)
        self._readers.pop(fd, None)
        with suppress(OSError):  # it is closed already
            self._epolls.pop(fd).unregister(fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = _fd_of(fileobj)
        key = self._keys[fd]
        if events != key.events:
            self._epolls[fd].modify(fd, _MASKS[events])
        key = self._keys[fd] = key._replace(events=events, data=data)
        return key

    def select(self, timeout: "float | None" = None) -> "list[tuple[selectors.SelectorKey, int]]":
        wait = -1 if timeout is None else 0 if timeout <= 0 else math.ceil(timeout * 1000) / 1000
        deadline = time.monotonic() + wait if wait > 0 else 0.0
        # If all events were parts of streams that were relayed, asyncio has nothing to do, and its turn would cost more
        # than they did.
        while (events := self._poll(wait)) is None and wait:
            if wait > 0 and (wait := deadline - time.monotonic()) <= 0:
                break
        return events or []

    def _poll(self, wait: float) -> "list[tuple[selectors.SelectorKey, int]] | None":
        """Poll once. Return the events for asyncio; None if the readers have handled all of them."""
        readers, remaining = self._readers, []
        ready = self._unlimited.poll(wait, self._max_events)
        all_handled = bool(ready)
        for fd, mask in ready:
            if mask == _IN and (read := readers.get(fd)) and (done := read()):
                if done != QUIET:
                    all_handled = False
                continue
            all_handled = False
            if key := self._keys.get(fd):
                # An error counts as both, as in asyncio's selectors.
                events = (mask & ~_IN and selectors.EVENT_WRITE) | (mask & ~_OUT and selectors.EVENT_READ)
                remaining.append((key, events & key.events))
            elif watched := self._watched.get(fd):
                watched.on_ready(mask)
            elif per_turn := self._limits_by_epoll.get(fd):
                ready += self._limited[per_turn].poll(0, per_turn)  # handled after the others
        return None if all_handled else remaining

    def close(self) -> None:
        for each in (*self._limited.values(), self._unlimited):
            each.close()
        self._keys.clear()

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[_fd_of(fileobj)]

    def get_map(self) -> "Mapping[Any, selectors.SelectorKey]":
        return self._keys


def _fd_of(fileobj: Any) -> int:
    return fileobj if isinstance(fileobj, int) else int(fileobj.fileno())
