"""A connection to an engine, for one request after another. Each part of an answer goes to its client at once: an event
of a stream costs one read, one look at its chunk and one write, and wakes no task.
"""

import asyncio
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence

from .answer_framing import CHUNKS, LAST_CHUNK, AnswerFraming, in_chunk
from .connections import ClientConnection
from .engine_control import EngineFault
from .fair_selector import DONE, NOTHING, QUIET
from .key_limits import END_OF_EVENT, USAGE, TokenCount
from .plain_transport import READ_BYTES

_HELD_BYTES = 65_536  # of an answer; beyond that, nothing more is read from the engine
KEPT_S = 4  # without a request: uvicorn, and so vLLM, closes a connection after 5 seconds
ReadBy = Callable[[int, "Callable[[], int]"], None]
_WRITTEN_BYTES = 131_072  # of a request at a time, so that no write stops all streams


class NotBegun(EngineFault):
    """The engine closed the connection, certainly before it had all of the request."""


def whole_if_small(head: bytes, body: Sequence[bytes]) -> bytes:
    """A request in one piece; empty if it is large."""
    return b"".join((head, *body)) if sum(map(len, body)) < _WRITTEN_BYTES else b""


class EngineConnection(asyncio.Protocol):
    """One connection. answer: what is known of the answer so far; passed: bytes of its body that were taken or passed
    on.
    """

    __slots__ = (
        *("answer", "passed", "_silence", "_sent", "_read_by", "_loop", "_transport", "_socket", "_number", "_lost"),
        *("_wakes", "_timer", "_forget", "_kept_until", "_full", "_came", "_heard", "_asked", "_unsent", "_held"),
        *("_write", "_head", "_framed", "_straight", "_count"),
    )

    def __init__(self, silence: float, sent: int = 0, read_by: ReadBy = lambda fd, read: None) -> None:
        """sent: bytes of the first request that were sent before; read_by: FairSelector.read_by."""
        self._silence, self._sent, self._read_by = silence, sent, read_by
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._socket: socket.socket
        self._lost: EngineFault | None = None
        self._wakes: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._forget: Callable[[], object] | None = None
        self._kept_until = 0.0
        self._full = False
        self._begin()

    def _begin(self) -> None:
        self.answer = AnswerFraming()
        self.passed = 0
        self._came = False  # a byte of the answer
        self._heard = 0.0
        self._asked = False
        self._unsent: deque[bytes | memoryview] = deque()
        self._held: list[bytes] = []
        self._write: Callable[[bytes], object] | None = None  # of the client, once all goes there
        self._head = b""
        self._framed = self._straight = False
        self._count = TokenCount()

    @property
    def received(self) -> int:
        """A number that grows with each part of the answer that comes."""
        return self.passed + sum(map(len, self._held)) + bool(self.answer.status)

    # ---- between requests

    def keep(self, forget: Callable[[], object]) -> None:
        """Keep the connection without a request, for `KEPT_S` at most. forget: called if it is lost before that."""
        self._begin()
        self.resume()  # its last client may have been slow to the end
        self._kept_until, self._forget = time.monotonic() + KEPT_S, forget

    def wake(self) -> bool:
        """Tell whether it can take a request: the engine has neither closed it nor sent anything unasked."""
        self._forget = None
        if self._lost or self._transport.is_closing():
            return False
        now = select.poll()
        now.register(self._socket.fileno(), select.POLLIN | select.POLLRDHUP)
        return not now.poll(0)

    @property
    def reusable(self) -> bool:
        """The request was sent whole, and its answer ended as its framing says, with no byte after it."""
        sent = not self._unsent and not self._transport.get_write_buffer_size()
        return self.answer.ended and self.answer.kept and sent and not self._held and self._lost is None

    def close(self) -> None:
        """Close at once. An engine that still answers stops, because its client is gone."""
        self._fail(EngineFault("closed"))

    # ---- a request

    async def ask(self, head: bytes, body: Sequence[bytes]) -> None:
        """Send a request and wait for the head of the answer. Raises EngineFault, NotBegun."""
        self._heard = time.monotonic()
        if self._timer is None:
            self._read_by(self._number, self._take_event)
            self._watch()
        small = whole_if_small(head, body)
        parts = [small] if small else [head, *body]
        sent, self._sent = self._sent, 0
        self._asked = sent > 0
        for part in parts:
            whole, sent = memoryview(part)[sent:], 0
            self._unsent.extend(whole[at : at + _WRITTEN_BYTES] for at in range(0, len(whole), _WRITTEN_BYTES))
        self._send()
        while not self.answer.status:
            await self._changed()

    async def part(self) -> bytes:
        """The next part of the body; empty at its end. Raises EngineFault."""
        await self.begins()
        part = b"".join(self._held)
        self._held.clear()
        self.passed += len(part)
        self.resume()
        return part

    async def begins(self) -> None:
        """Wait for the first bytes of the body, or its end. Raises EngineFault."""
        while not self._held and not self.answer.ended:
            await self._changed()

    async def pass_on(self, client: ClientConnection, head: bytes, framed: bool, count: TokenCount | None) -> None:
        """Pass on the answer after this head, as it comes, until it ends. framed: in chunks; count: counts its tokens.
        Raises EngineFault.
        """
        self._write, self._head, self._framed = client.write, head, framed
        self._count = count or self._count
        try:
            self._pass_held()
            client.reads_from(self)
            while not self.answer.ended:
                await self._changed()
        finally:
            client.reads_from(None)
            self._write, self._straight = None, False

    def _take_event(self) -> int:
        try:
            data = os.read(self._number, READ_BYTES)
        except OSError:
            return NOTHING
        if not data:
            return NOTHING
        try:
            # `in` would build an exception before it searches; `find` does not.
            if self._straight and data.endswith(END_OF_EVENT) and data.find(USAGE) < 0 and self._write:
                begins = CHUNKS.get(len(data))
                if begins and data.startswith(begins):
                    size = len(data) - len(begins) - 2
                else:
                    size = self.answer.whole_chunks(data)
                if size:
                    self._count.events += data.count(b"\n\n")
                    self._heard = time.monotonic()
                    self.passed += size
                    return QUIET if self._write(data) else DONE
            self.data_received(data)
        except Exception as error:  # noqa: BLE001 - in the selector it would end the event loop
            self._fail(EngineFault(type(error).__name__))
        return DONE

    async def _changed(self) -> None:
        if self._lost:
            raise self._lost
        self._wakes = self._loop.create_future()
        await self._wakes

    def _wake(self) -> None:
        if self._wakes and not self._wakes.done():
            self._wakes.set_result(None)

    def _send(self) -> None:
        while self._unsent and not self._full and not self._transport.is_closing():
            self._asked = True
            self._transport.write(self._unsent.popleft())

    def _pass_held(self) -> None:
        """Pass on what is held in one write, with the head before and the end after it: each write costs more than its
        content.
        """
        if not self._write:
            return
        part = b"".join(self._held)
        self._held.clear()
        self.passed += len(part)
        ended = self.answer.ended
        part = self._count.feed(part) + (self._count.end() if ended else b"")
        self._straight = self._framed and self.answer.between and self._count.between
        if self._framed:
            part = (in_chunk(part) if part else b"") + (LAST_CHUNK if ended else b"")
        if self._head or part:
            self._write(self._head + part)
            self._head = b""

    # ---- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._socket = transport, transport.get_extra_info("socket")
        self._number = self._socket.fileno()
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._heard = time.monotonic()
        self._came = True
        try:
            if self._forget:
                raise EngineFault("unasked")
            if part := self.answer.feed(data):
                self._held.append(part)
        except EngineFault as error:
            self._fail(error)
            return
        if self._write:
            self._pass_held()
        elif sum(map(len, self._held)) > _HELD_BYTES:
            self.pause()
        self._wake()

    def eof_received(self) -> None:
        try:
            self.answer.closed()
        except EngineFault as error:
            self._fail(NotBegun("closed") if self._not_begun(None) else error)
        self.answer.kept = False
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        name = type(exc).__name__ if exc else "closed"
        self._fail(NotBegun(name) if self._not_begun(exc) else EngineFault(name))
        if self._forget:
            self._forget()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._send()

    def pause(self) -> None:
        """Read no more of the answer, because its client does not."""
        self._transport.pause_reading()

    def resume(self) -> None:
        if not self._transport.is_closing() and not self._transport.is_reading():
            self._heard = time.monotonic()
            self._transport.resume_reading()
            self._read_by(self._number, self._take_event)

    # ---- its end

    def _fail(self, error: EngineFault) -> None:
        self._lost = self._lost or error
        if self._timer:
            self._timer.cancel()
        self._transport.abort()
        self._wake()

    def _not_begun(self, error: Exception | None) -> bool:
        """Tell whether the engine cannot have read all of the request. Its silence proves nothing."""
        if self._came or not self._asked:
            return False
        if self._unsent or self._transport.get_write_buffer_size() or isinstance(error, BrokenPipeError):
            return True
        # On a Unix socket, a reset means that the other side left bytes unread. With TCP it does not.
        return self._socket.family == socket.AF_UNIX and isinstance(error, ConnectionResetError)

    def _watch(self) -> None:
        """End the connection if its engine is silent, or if it had no request for too long. One timer serves both, from
        the first request to the end: a timer for each request would cost more than all else of waiting for it.
        """
        now = time.monotonic()
        if self._forget:
            left, why = self._kept_until - now, "closed"
        else:
            if self.answer.ended or not self._transport.is_reading():
                self._heard = now  # a client that reads slowly is no silence of the engine
            left, why = self._heard + self._silence - now, "silent"
        if left <= 0:
            self._fail(EngineFault(why))
        else:
            self._timer = self._loop.call_later(min(left, KEPT_S), self._watch)
