"""A client's connection without TLS: an asyncio transport at a third of the usual cost. It reads right where the event
loop waits, and a connection needs no turn of its own to begin.
"""

import asyncio
import os
import select
import socket
from typing import Any

from .fair_selector import WITHOUT_KEY, FairSelector

READ_BYTES = 65_536  # at a time: asyncio's own 256 KiB would come from the kernel and go back to it each time
# Read first. More would pause reading, which asyncio has not begun yet, and Python 3.10 would begin all the same.
FIRST_BYTES = 16_384
_HIGH, _LOW = 65_536, 16_384  # bytes not yet taken by the client at which the protocol pauses and resumes, as asyncio's
_IN, _OUT = select.EPOLLIN, select.EPOLLOUT


class PlainTransport(asyncio.Transport):
    """It calls its protocol as asyncio does, and from within a call by the protocol only in `send` and `write`."""

    __slots__ = (
        *("_loop", "_socket", "_protocol", "_selector", "_number", "_buffer"),
        *("_reads", "_events", "_full", "_closing", "_ended"),
    )

    def __init__(self, client: socket.socket, protocol: asyncio.Protocol, selector: FairSelector) -> None:
        super().__init__({"socket": client})
        client.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._socket, self._protocol, self._selector = client, protocol, selector
        self._number = client.fileno()
        self._buffer = bytearray()
        self._reads, self._events = True, 0
        self._full = self._closing = self._ended = False
        selector.watch(self._number, self._ready, WITHOUT_KEY)

    def begin(self) -> None:
        """Read what has come, as most requests have by now, and wait for more."""
        try:
            self._read(FIRST_BYTES)
            self._look()
        except Exception as error:  # noqa: BLE001 - other connections must still be accepted
            self._end(error)

    # ---- what comes

    def _ready(self, mask: int) -> None:
        try:
            if mask & ~_OUT and self.is_reading():
                self._read(READ_BYTES)
            if mask & ~_IN and self._buffer:
                self._flush()
        except Exception as error:  # noqa: BLE001 - in the selector it would end the event loop
            self._end(error)

    def _read(self, most: int) -> None:
        try:
            data = self._socket.recv(most)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        if data:
            self._protocol.data_received(data)
        else:
            self.close()

    def _look(self) -> None:
        """Watch the socket for the events that matter now."""
        if self._ended:
            return
        events = (_IN if self._reads and not self._closing else 0) | (_OUT if self._buffer else 0)
        if events != self._events:
            self._events = events
            self._selector.look_for(self._number, events)

    def is_reading(self) -> bool:
        return self._reads and not self._closing

    def pause_reading(self) -> None:
        self._reads = False
        self._look()

    def resume_reading(self) -> None:
        self._reads = True
        self._look()

    # ---- what goes

    def write(self, data: Any) -> None:
        self.send(data)

    def send(self, data: "bytes | bytearray | memoryview") -> bool:
        """Send; True if the kernel took all of it, and so nothing else happened."""
        if self._ended:
            return False
        sent = 0
        if not self._buffer:
            try:
                sent = os.write(self._number, data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self._end(error)
                return False
            if sent == len(data):
                return True
        self._buffer += memoryview(data)[sent:]
        self._look()
        if len(self._buffer) > _HIGH and not self._full:
            self._full = True
            self._protocol.pause_writing()
        return False

    def _flush(self) -> None:
        try:
            sent = os.write(self._number, self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        del self._buffer[:sent]
        if self._full and len(self._buffer) <= _LOW:
            self._full = False
            self._protocol.resume_writing()
        if self._closing and not self._buffer:
            self._end(None)
        self._look()

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    # ---- its end

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Close after all that was written has been sent."""
        self._closing = True
        if self._buffer:
            self._look()
        else:
            self._end(None)

    def abort(self) -> None:
        self._end(None)

    def _end(self, error: "Exception | None") -> None:
        if self._ended:
            return
        self._closing = self._ended = True
        self._buffer.clear()
        self._selector.forget(self._number)

        def lost() -> None:
            self._protocol.connection_lost(error)
            self._socket.close()

        self._loop.call_soon(lost)
