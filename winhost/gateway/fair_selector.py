"""Limit how many ready sockets one turn of the event loop handles: all engines, but only some clients.

However many connections send something or end at the same moment, a stream waits for only a few of them.
"""

import math
import os
import select
import selectors
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

# Clients in one turn: with a valid key, and without one, whose handshake of TLS takes longest.
WITH_KEY, WITHOUT_KEY = 16, 4
# What a reader did with the bytes that came: nothing, so that asyncio has to; all of it, and it woke something; all of
# it, and nothing is left for the event loop.
NOTHING, DONE, QUIET = range(3)
_MASKS = {
    each: (each & selectors.EVENT_READ and select.EPOLLIN) | (each & selectors.EVENT_WRITE and select.EPOLLOUT)
    for each in range(1, 4)
}
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT


class _Watched:
    """A socket that asyncio does not know. events: those that are watched, 0: none."""

    __slots__ = ("epoll", "events", "ready")

    def __init__(self, ready: Callable[[int], object], epoll: select.epoll) -> None:
        self.ready, self.epoll, self.events = ready, epoll, 0


class FairSelector(selectors.BaseSelector):
    """asyncio's selector with one more epoll for each limit. The kernel rotates the ready sockets of an epoll."""

    def __init__(self) -> None:
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._watched: dict[int, _Watched] = {}
        self._most = 1
        self._all = select.epoll()
        self._few = {most: select.epoll() for most in (WITH_KEY, WITHOUT_KEY)}
        self._mosts = {each.fileno(): most for most, each in self._few.items()}
        for fd in self._mosts:
            self._all.register(fd, _IN)
        self._limits: dict[int, tuple[int, int]] = {}
        self._in: dict[int, select.epoll] = {}
        self._readers: dict[int, Callable[[], int]] = {}

    def read_by(self, fd: int, read: "Callable[[], int]") -> None:
        """Read this socket with `read` as long as it stays registered, at half the cost of asyncio's own way. read:
        returns NOTHING, DONE or QUIET.
        """
        if fd in self._keys:
            self._readers[fd] = read

    def watch(self, fd: int, ready: "Callable[[int], object]", most: int = 0) -> None:
        """Watch a socket without asyncio. ready: called with epoll's mask; most: as for `limit`."""
        self._watched[fd] = _Watched(ready, self._few[most] if most else self._all)
        self._most = max(self._most, len(self._keys) + len(self._watched) + len(self._few))

    def look_for(self, fd: int, events: int) -> None:
        """Choose epoll's events for a watched socket."""
        found = self._watched[fd]
        if not events:
            found.epoll.unregister(fd)
        elif found.events:
            found.epoll.modify(fd, events)
        else:
            found.epoll.register(fd, events)
        found.events = events

    def forget(self, fd: int) -> None:
        """Stop watching a socket that is about to be closed."""
        self._watched.pop(fd, None)

    def limit(self, fd: int, most: int) -> None:
        """Count a socket, registered or not, among those of which one turn handles at most this many."""
        if watched := self._watched.get(fd):
            events = watched.events
            if events:
                self.look_for(fd, 0)
            watched.epoll = self._few[most]
            if events:
                self.look_for(fd, events)
            return
        with suppress(OSError):  # its client has just gone
            self._limits[fd] = most, os.fstat(fd).st_ino
            if key := self._keys.get(fd):
                self._in[fd].unregister(fd)
                self._enter(fd, key.events)

    def _enter(self, fd: int, events: int) -> None:
        most, socket = self._limits.get(fd, (0, 0))
        if most and socket != os.fstat(fd).st_ino:  # another socket has this number now
            del self._limits[fd]
            most = 0
        epoll = self._few[most] if most else self._all
        epoll.register(fd, _MASKS[events])
        self._in[fd] = epoll

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = _number(fileobj)
        if fd in self._keys:
            raise KeyError(f"{fd} is registered already")
        self._enter(fd, events)
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        self._most = max(self._most, len(self._keys) + len(self._watched) + len(self._few))
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        fd = _number(fileobj)
        key = self._keys.pop(fd)
        self._readers.pop(fd, None)
        with suppress(OSError):  # it is closed already
            self._in.pop(fd).unregister(fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = _number(fileobj)
        key = self._keys[fd]
        if events != key.events:
            self._in[fd].modify(fd, _MASKS[events])
        key = self._keys[fd] = key._replace(events=events, data=data)
        return key

    def select(self, timeout: "float | None" = None) -> "list[tuple[selectors.SelectorKey, int]]":
        wait = -1 if timeout is None else 0 if timeout <= 0 else math.ceil(timeout * 1000) / 1000
        until = time.monotonic() + wait if wait > 0 else 0.0
        # Events of streams that were passed on leave asyncio nothing to do, and its turn would cost more than they did.
        while (found := self._look(wait)) is None and wait:
            if wait > 0 and (wait := until - time.monotonic()) <= 0:
                break
        return found or []

    def _look(self, wait: float) -> "list[tuple[selectors.SelectorKey, int]] | None":
        """Poll once. Returns the events left for asyncio; None if all that came is handled."""
        readers, found = self._readers, []
        came = self._all.poll(wait, self._most)
        quiet = bool(came)
        for fd, mask in came:
            if mask == _IN and (read := readers.get(fd)) and (done := read()):
                if done != QUIET:
                    quiet = False
                continue
            quiet = False
            if key := self._keys.get(fd):
                # An error counts as both, as for asyncio's own.
                events = (mask & ~_IN and selectors.EVENT_WRITE) | (mask & ~_OUT and selectors.EVENT_READ)
                found.append((key, events & key.events))
            elif ready := self._watched.get(fd):
                ready.ready(mask)
            elif most := self._mosts.get(fd):
                came += self._few[most].poll(0, most)  # looked at after those that came before
        return None if quiet else found

    def close(self) -> None:
        for each in (*self._few.values(), self._all):
            each.close()
        self._keys.clear()

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[_number(fileobj)]

    def get_map(self) -> "Mapping[Any, selectors.SelectorKey]":
        return self._keys


def _number(fileobj: Any) -> int:
    return fileobj if isinstance(fileobj, int) else int(fileobj.fileno())
