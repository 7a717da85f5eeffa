"""A client's connection without TLS: an asyncio transport at a third of the usual cost. It reads as soon as the
selector finds its socket ready, and a new connection needs no turn of the event loop of its own.
"""

import asyncio
import os
import select
import socket
from typing import Any

from .fair_selector import WITHOUT_KEY, FairSelector

READ_BYTES = 65_536  # at a time: a buffer of 256 KiB, as in asyncio, would be allocated and freed for each read
# The size of the first read. A larger one could pause reading before asyncio has begun it, and Python 3.10 would then
# begin it.
FIRST_BYTES = 16_384
_PAUSE_BYTES, _RESUME_BYTES = 65_536, 16_384  # unsent bytes at which the protocol pauses and resumes, as in asyncio
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT


class PlainTransport(asyncio.Transport):
    """The transport calls its protocol as asyncio does. While the protocol calls a method, only `send` and `write` call
    it back.
    """

    __slots__ = (
        *("_loop", "_socket", "_protocol", "_selector", "_number", "_buffer"),
        *("_reading", "_events", "_write_paused", "_closing", "_closed"),
    )

    def __init__(self, client: socket.socket, protocol: asyncio.Protocol, selector: FairSelector) -> None:
        super().__init__({"socket": client})
        client.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._socket, self._protocol, self._selector = client, protocol, selector
        self._number = client.fileno()
        self._buffer = bytearray()
        self._reading, self._events = True, 0
        self._write_paused = self._closing = self._closed = False
        selector.watch(self._number, self._ready, WITHOUT_KEY)

    def begin(self) -> None:
        """Read the bytes that have come, as most requests have by now, and wait for more."""
        try:
            self._read(FIRST_BYTES)
            self._update_events()
        except Exception as error:  # noqa: BLE001 - other connections must still be accepted
            self._close_now(error)

    # ---- reading

    def _ready(self, mask: int) -> None:
        try:
            if mask & ~_OUT and self.is_reading():
                self._read(READ_BYTES)
            if mask & ~_IN and self._buffer:
                self._flush()
        except Exception as error:  # noqa: BLE001 - it would end the event loop
            self._close_now(error)

    def _read(self, limit: int) -> None:
        try:
            data = self._socket.recv(limit)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close_now(error)
            return
        if data:
            self._protocol.data_received(data)
        else:
            self.close()

    def _update_events(self) -> None:
        """Watch the socket for the events that are needed now."""
        if self._closed:
            return
        events = (_IN if self._reading and not self._closing else 0) | (_OUT if self._buffer else 0)
        if events != self._events:
            self._events = events
            self._selector.set_events(self._number, events)

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False
        self._update_events()

    def resume_reading(self) -> None:
        self._reading = True
        self._update_events()

    # ---- writing

    def write(self, data: Any) -> None:
        self.send(data)

    def send(self, data: "bytes | bytearray | memoryview") -> bool:
        """Send bytes. Return True if the kernel took all of them, so that no callback was called."""
        if self._closed:
            return False
        sent = 0
        if not self._buffer:
            try:
                sent = os.write(self._number, data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self._close_now(error)
                return False
            if sent == len(data):
                return True
        self._buffer += memoryview(data)[sent:]
        self._update_events()
        if len(self._buffer) > _PAUSE_BYTES and not self._write_paused:
            self._write_paused = True
            self._protocol.pause_writing()
        return False

    def _flush(self) -> None:
        try:
            sent = os.write(self._number, self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close_now(error)
            return
        del self._buffer[:sent]
        if self._write_paused and len(self._buffer) <= _RESUME_BYTES:
            self._write_paused = False
            self._protocol.resume_writing()
        if self._closing and not self._buffer:
            self._close_now(None)
        self._update_events()

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    # ---- closing

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Close after all that was written has been sent."""
        self._closing = True
        if self._buffer:
            self._update_events()
        else:
            self._close_now(None)

    def abort(self) -> None:
        self._close_now(None)

    def _close_now(self, error: "Exception | None") -> None:
        if self._closed:
            return
        self._closing = self._closed = True
        self._buffer.clear()
        self._selector.unwatch(self._number)

        def notify_lost() -> None:
            self._protocol.connection_lost(error)
            self._socket.close()

        self._loop.call_soon(notify_lost)
