"""A connection to an engine, for one request after another. Each part of an answer is relayed to its client at once: an
event of a stream costs one read, one check of its chunk and one write, and wakes no task.
"""

import asyncio
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence

from .answer_framing import KNOWN_CHUNK_LINES, LAST_CHUNK, AnswerFraming, encode_chunk
from .connections import ClientConnection
from .engine_control import EngineFault
from .fair_selector import DONE, NOTHING, QUIET
from .key_limits import END_OF_EVENT, USAGE, TokenCount
from .plain_transport import READ_BYTES

_MAX_HELD_BYTES = 65_536  # of an answer; beyond that, nothing more is read from the engine
IDLE_S = 4  # seconds without a request: uvicorn, and so vLLM, closes a connection after 5
ReadBy = Callable[[int, "Callable[[], int]"], None]
_WRITE_BYTES = 131_072  # of a request at a time, so that no write stops all streams


class RequestNotReceived(EngineFault):
    """The engine closed the connection before it can have read all of the request, so that it can be sent again."""


def join_if_small(head: bytes, body: Sequence[bytes]) -> bytes:
    """Join a request into one write; empty if it is too large for that."""
    return b"".join((head, *body)) if sum(map(len, body)) < _WRITE_BYTES else b""


class EngineConnection(asyncio.Protocol):
    """One connection. answer: the framing of the present answer; relayed_bytes: bytes of its body that were read by
    `part` or relayed.
    """

    __slots__ = (
        *("answer", "relayed_bytes", "_silence_limit", "_already_sent", "_read_by", "_loop", "_transport", "_socket"),
        *("_number", "_error", "_wakeup", "_timer", "_on_idle_loss", "_idle_until", "_write_paused", "_answer_started"),
        *("_last_heard", "_request_started", "_unsent", "_received", "_write_to_client", "_head", "_encodes_chunks"),
        *("_relays_whole_chunks", "_count"),
    )

    def __init__(self, silence_limit: float, sent: int = 0, read_by: ReadBy = lambda fd, read: None) -> None:
        """silence_limit: seconds for which the engine may send nothing; sent: bytes of the first request that are sent
        already; read_by: FairSelector.read_by.
        """
        self._silence_limit, self._already_sent, self._read_by = silence_limit, sent, read_by
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._socket: socket.socket
        self._error: EngineFault | None = None
        self._wakeup: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._on_idle_loss: Callable[[], object] | None = None
        self._idle_until = 0.0
        self._write_paused = False
        self._reset()

    def _reset(self) -> None:
        self.answer = AnswerFraming()
        self.relayed_bytes = 0
        self._answer_started = False
        self._last_heard = 0.0
        self._request_started = False
        self._unsent: deque[bytes | memoryview] = deque()
        self._received: list[bytes] = []
        self._write_to_client: Callable[[bytes], object] | None = None  # set while the answer is relayed
        self._head = b""
        self._encodes_chunks = self._relays_whole_chunks = False
        self._count = TokenCount()

    @property
    def received(self) -> int:
        """A number that grows with each part of the answer."""
        return self.relayed_bytes + sum(map(len, self._received)) + bool(self.answer.status)

    # ---- between requests

    def set_idle(self, on_loss: Callable[[], object]) -> None:
        """Keep the connection without a request for up to `IDLE_S`. on_loss: called if it is lost before the next
        request.
        """
        self._reset()
        self.resume()  # it is paused if its last client was slow to the end
        self._idle_until, self._on_idle_loss = time.monotonic() + IDLE_S, on_loss

    def reactivate(self) -> bool:
        """End the idle state. Return whether it can take a request: the engine has neither closed it nor sent a byte
        without a request.
        """
        self._on_idle_loss = None
        if self._error or self._transport.is_closing():
            return False
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN | select.POLLRDHUP)
        return not poll.poll(0)

    @property
    def is_reusable(self) -> bool:
        """The request was sent whole, and its answer is complete, with no byte after it."""
        sent = not self._unsent and not self._transport.get_write_buffer_size()
        return self.answer.complete and self.answer.keep_alive and sent and not self._received and self._error is None

    def close(self) -> None:
        """Close at once. An engine that still answers stops, because its client is gone."""
        self._fail(EngineFault("closed"))

    # ---- a request

    async def send_request(self, head: bytes, body: Sequence[bytes]) -> None:
        """Send a request and wait for the head of the answer. Raises EngineFault, RequestNotReceived."""
        self._last_heard = time.monotonic()
        if self._timer is None:
            self._read_by(self._number, self._relay_ready)
            self._check_timeouts()
        small = join_if_small(head, body)
        parts = [small] if small else [head, *body]
        sent, self._already_sent = self._already_sent, 0
        self._request_started = sent > 0
        for part in parts:
            view, sent = memoryview(part)[sent:], 0
            self._unsent.extend(view[offset : offset + _WRITE_BYTES] for offset in range(0, len(view), _WRITE_BYTES))
        self._send()
        while not self.answer.status:
            await self._wait_for_change()

    async def next_part(self) -> bytes:
        """Wait for the next part of the body; empty at its end. Raises EngineFault."""
        await self.wait_for_body()
        part = b"".join(self._received)
        self._received.clear()
        self.relayed_bytes += len(part)
        self.resume()
        return part

    async def wait_for_body(self) -> None:
        """Wait for the first bytes of the body, or its end. Raises EngineFault."""
        while not self._received and not self.answer.complete:
            await self._wait_for_change()

    async def relay(self, client: ClientConnection, head: bytes, framed: bool, count: TokenCount | None) -> None:
        """Send the head to the client, and then the answer as it comes, until it ends. framed: as chunks; count: counts
        its tokens. Raises EngineFault.
        """
        self._write_to_client, self._head, self._encodes_chunks = client.write, head, framed
        self._count = count or self._count
        try:
            self._relay_received()
            client.set_source(self)
            while not self.answer.complete:
                await self._wait_for_change()
        finally:
            client.set_source(None)
            self._write_to_client, self._relays_whole_chunks = None, False

    def _relay_ready(self) -> int:
        try:
            data = os.read(self._number, READ_BYTES)
        except OSError:
            return NOTHING
        if not data:
            return NOTHING
        try:
            # `find` is faster than `in`, which builds an exception before it searches.
            if (
                self._relays_whole_chunks
                and data.endswith(END_OF_EVENT)
                and data.find(USAGE) < 0
                and self._write_to_client
            ):
                size_line = KNOWN_CHUNK_LINES.get(len(data))
                if size_line and data.startswith(size_line):
                    size = len(data) - len(size_line) - 2
                else:
                    size = self.answer.whole_chunk_bytes(data)
                if size:
                    self._count.events += data.count(b"\n\n")
                    self._last_heard = time.monotonic()
                    self.relayed_bytes += size
                    return QUIET if self._write_to_client(data) else DONE
            self.data_received(data)
        except Exception as error:  # noqa: BLE001 - in the selector it would end the event loop
            self._fail(EngineFault(type(error).__name__))
        return DONE

    async def _wait_for_change(self) -> None:
        if self._error:
            raise self._error
        self._wakeup = self._loop.create_future()
        await self._wakeup

    def _notify_change(self) -> None:
        if self._wakeup and not self._wakeup.done():
            self._wakeup.set_result(None)

    def _send(self) -> None:
        while self._unsent and not self._write_paused and not self._transport.is_closing():
            self._request_started = True
            self._transport.write(self._unsent.popleft())

    def _relay_received(self) -> None:
        """Relay the received parts in one write, with the head before them and the end after them: a write costs more
        than its bytes.
        """
        if not self._write_to_client:
            return
        part = b"".join(self._received)
        self._received.clear()
        self.relayed_bytes += len(part)
        ended = self.answer.complete
        part = self._count.feed(part) + (self._count.end() if ended else b"")
        self._relays_whole_chunks = self._encodes_chunks and self.answer.between_chunks and self._count.between_events
        if self._encodes_chunks:
            part = (encode_chunk(part) if part else b"") + (LAST_CHUNK if ended else b"")
        if self._head or part:
            self._write_to_client(self._head + part)
            self._head = b""

    # ---- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._socket = transport, transport.get_extra_info("socket")
        self._number = self._socket.fileno()
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._last_heard = time.monotonic()
        self._answer_started = True
        try:
            if self._on_idle_loss:
                raise EngineFault("unasked")
            if part := self.answer.feed(data):
                self._received.append(part)
        except EngineFault as error:
            self._fail(error)
            return
        if self._write_to_client:
            self._relay_received()
        elif sum(map(len, self._received)) > _MAX_HELD_BYTES:
            self.pause()
        self._notify_change()

    def eof_received(self) -> None:
        try:
            self.answer.handle_eof()
        except EngineFault as error:
            self._fail(RequestNotReceived("closed") if self._is_request_unread(None) else error)
        self.answer.keep_alive = False
        self._notify_change()

    def connection_lost(self, exc: Exception | None) -> None:
        name = type(exc).__name__ if exc else "closed"
        self._fail(RequestNotReceived(name) if self._is_request_unread(exc) else EngineFault(name))
        if self._on_idle_loss:
            self._on_idle_loss()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._send()

    def pause(self) -> None:
        """Read no more of the answer, because its client does not read."""
        self._transport.pause_reading()

    def resume(self) -> None:
        if not self._transport.is_closing() and not self._transport.is_reading():
            self._last_heard = time.monotonic()
            self._transport.resume_reading()
            self._read_by(self._number, self._relay_ready)

    # ---- its end

    def _fail(self, error: EngineFault) -> None:
        self._error = self._error or error
        if self._timer:
            self._timer.cancel()
        self._transport.abort()
        self._notify_change()

    def _is_request_unread(self, error: Exception | None) -> bool:
        """Tell whether the engine cannot have read all of the request. That it sent nothing does not prove that."""
        if self._answer_started or not self._request_started:
            return False
        if self._unsent or self._transport.get_write_buffer_size() or isinstance(error, BrokenPipeError):
            return True
        # On a Unix socket, a reset means that the other side left bytes unread. With TCP it does not.
        return self._socket.family == socket.AF_UNIX and isinstance(error, ConnectionResetError)

    def _check_timeouts(self) -> None:
        """Close the connection if its engine is silent, or if it had no request for too long. One timer does both for
        the lifetime of the connection: a timer for each request would cost more than the wait itself.
        """
        now = time.monotonic()
        if self._on_idle_loss:
            seconds, fault_code = self._idle_until - now, "closed"
        else:
            if self.answer.complete or not self._transport.is_reading():
                self._last_heard = now  # a client that reads slowly is no silence of the engine
            seconds, fault_code = self._last_heard + self._silence_limit - now, "silent"
        if seconds <= 0:
            self._fail(EngineFault(fault_code))
        else:
            self._timer = self._loop.call_later(min(seconds, IDLE_S), self._check_timeouts)
