"""How much of what came the event loop looks at in one turn: all that engines send, and of clients only some at a time.

However many connections have something to say at the same moment, or end at it, a stream waits for a few of them.
"""

import math
import os
import select
import selectors
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

# Clients in one turn: with a valid key, and without one, whose handshake of TLS takes longest.
WITH_KEY, WITHOUT_KEY = 16, 4
_MASKS = {
    each: (each & selectors.EVENT_READ and select.EPOLLIN) | (each & selectors.EVENT_WRITE and select.EPOLLOUT)
    for each in range(1, 4)
}
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT


class FairSelector(selectors.BaseSelector):
    """As asyncio's own, with an epoll more for each limit. The kernel lets the sockets in it take turns."""

    def __init__(self) -> None:
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._all = select.epoll()
        self._few = {most: select.epoll() for most in (WITH_KEY, WITHOUT_KEY)}
        self._mosts = {each.fileno(): most for most, each in self._few.items()}
        for fd in self._mosts:
            self._all.register(fd, _IN)
        self._limits: dict[int, tuple[int, int]] = {}
        self._in: dict[int, select.epoll] = {}
        self._readers: dict[int, Callable[[], bool]] = {}

    def read_by(self, fd: int, read: "Callable[[], bool] | None") -> None:
        """read: takes what comes on this socket, as long as it stays registered, at half the price of asyncio's way to
        its protocol; false where asyncio is to find out. None: no longer.
        """
        if read and fd in self._keys:
            self._readers[fd] = read
        else:
            self._readers.pop(fd, None)

    def limit(self, fd: int, most: int) -> None:
        """In each turn so many of these are looked at. Holds for this socket, registered or not."""
        with suppress(OSError):  # its client has just gone
            self._limits[fd] = most, os.fstat(fd).st_ino
            if key := self._keys.get(fd):
                self._in[fd].unregister(fd)
                self._enter(fd, key.events)

    def _enter(self, fd: int, events: int) -> None:
        most, socket = self._limits.get(fd, (0, 0))
        if most and socket != os.fstat(fd).st_ino:  # another one that has its number now
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
        keys, readers, found = self._keys, self._readers, []
        came = self._all.poll(wait, len(keys) + len(self._few))
        for fd, mask in came:
            if mask == _IN and (read := readers.get(fd)) and read():
                continue
            if key := keys.get(fd):
                # An error counts as both, as for asyncio's own.
                events = (mask & ~_IN and selectors.EVENT_WRITE) | (mask & ~_OUT and selectors.EVENT_READ)
                found.append((key, events & key.events))
            elif most := self._mosts.get(fd):
                came += self._few[most].poll(0, most)  # looked at after those that came before
        return found

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
