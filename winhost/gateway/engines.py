"""Connections to engines, and the gateway's own requests to them."""

import asyncio
import json
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from .engine_connection import EngineConnection, ReadBy, RequestNotReceived, join_if_small
from .engine_control import EngineControl, EngineFault, EngineUnreachable
from .gateway_settings import Limits, PublishedModel
from .settings_values import SocketOrPort

_RETRY_PAUSE_S = 0.25
_CONNECT_S = 5
_BACKLOG_S = 0.01
_MAX_IDLE = 64  # connections to one engine without a request
_MAX_ANSWER_BYTES = 1_000_000
_READY_S = 30  # the first completion of an engine may still compile
_READY_CACHE_S = {True: 15, False: 2}
_READY_REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", {"prompt": "1", "max_tokens": 1}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "1"}], "max_tokens": 1}),
    "embedding": ("/v1/embeddings", {"input": "1"}),
}


class AnswerTooLong(Exception):
    """An answer is longer than allowed."""


class Engines:
    """Connections to engines. A connection is used again after a complete answer. An engine may close an idle
    connection just when it gets a request; the request is sent again only if the engine cannot have read it.

    retirements: how often `retire_connections` was called, by engine.
    """

    def __init__(self, limits: Limits, read_by: ReadBy = lambda fd, read: None) -> None:
        """read_by: FairSelector.read_by."""
        self.limits, self._read_by = limits, read_by
        self._idle: defaultdict[SocketOrPort, dict[EngineConnection, None]] = defaultdict(dict)
        self.retirements: defaultdict[SocketOrPort, int] = defaultdict(int)  # faster than a Counter for missing keys
        self._ready: dict[str, tuple[float, bool]] = {}
        self._ready_lock = asyncio.Lock()
        self._metrics_connections: defaultdict[SocketOrPort, set[EngineConnection]] = defaultdict(set)

    def take_idle(self, engine: SocketOrPort) -> EngineConnection | None:
        """Take an idle connection that can take a request; None if there is none."""
        idle = self._idle[engine]
        while idle:
            if (connection := idle.popitem()[0]).reactivate():
                return connection
            connection.close()
        return None

    def finish(self, engine: SocketOrPort, connection: EngineConnection, keep_alive: bool) -> None:
        """End a request on a connection. keep_alive: another request may use the connection."""
        idle = self._idle[engine]
        if not (keep_alive and connection.is_reusable and len(idle) < _MAX_IDLE):
            connection.close()
            return
        connection.set_idle(lambda: idle.pop(connection, None))
        idle[connection] = None

    def retire_connections(self, engine: SocketOrPort) -> None:
        """Stop using connections to an engine: those without a request close now, the others after their answers."""
        self.retirements[engine] += 1
        while self._idle[engine]:
            self._idle[engine].popitem()[0].close()
        for connection in self._metrics_connections[engine]:
            connection.close()

    async def connect(self, engine: SocketOrPort, request: bytes = b"") -> EngineConnection:
        """Connect to an engine. request: sent to a Unix socket at once, before asyncio takes the socket over, so that
        the engine begins sooner. Raises EngineUnreachable, EngineFault.
        """
        loop = asyncio.get_running_loop()
        silence, sent = self.limits.silence, 0
        try:
            if engine.socket:
                connected = await _connect_unix(engine.socket)
                with suppress(OSError):  # its buffer is full, or the engine closed it: asyncio reports that
                    sent = connected.send(request) if request else 0
                _, connection = await loop.create_unix_connection(
                    lambda: EngineConnection(silence, sent, self._read_by), sock=connected
                )
            else:
                host = engine.service or engine.address or ""
                connecting = loop.create_connection(
                    lambda: EngineConnection(silence, 0, self._read_by), host, engine.port
                )
                _, connection = await asyncio.wait_for(connecting, _CONNECT_S)
        except (OSError, asyncio.TimeoutError) as error:
            if sent:
                raise EngineFault(type(error).__name__) from None
            raise EngineUnreachable(str(engine)) from None
        return connection

    def control(self, model: PublishedModel) -> EngineControl:
        """Return the control of a model's engine."""

        async def call(method: str, path: str, body: "bytes | None", seconds: float) -> "tuple[int, bytes]":
            return await asyncio.wait_for(self._call_engine(model.engine, method, path, body), seconds)

        return EngineControl(model, call, lambda: self.retire_connections(model.engine))

    async def _call_engine(
        self, engine: SocketOrPort, method: str, path: str, body: "bytes | None"
    ) -> "tuple[int, bytes]":
        """Call an engine on a new connection, so that a call that puts it to sleep or wakes it is never sent twice."""
        parts = [body] if body else []
        connection = await self.connect(engine)
        try:
            await connection.send_request(_request_head(engine, method, path, parts, "Connection: close"), parts)
            return connection.answer.status, await _read_answer(connection)
        finally:
            connection.close()

    async def metrics(self, model: PublishedModel, limit: int) -> bytes:
        """Read the engine's metrics for Prometheus. limit: the most bytes. `retire_connections` closes this connection,
        too, so that the engine can sleep. Raises EngineUnreachable, EngineFault, AnswerTooLong.
        """
        connection = await self.connect(model.engine)
        self._metrics_connections[model.engine].add(connection)
        try:
            await connection.send_request(_request_head(model.engine, "GET", "/metrics", [], "Connection: close"), [])
            text = await _read_answer(connection, limit + 1)
        finally:
            self._metrics_connections[model.engine].discard(connection)
            connection.close()
        if connection.answer.status != 200:
            raise EngineFault(str(connection.answer.status))
        if len(text) > limit:
            raise AnswerTooLong
        return text

    async def is_ready(self, model: PublishedModel) -> bool:
        """Tell whether an engine completes a request. The result is cached for a few seconds."""
        async with self._ready_lock:
            checked_at, ready = self._ready.get(model.name, (float("-inf"), False))
            if time.monotonic() - checked_at > _READY_CACHE_S[ready]:
                ready = await self._completes_request(model)
                self._ready[model.name] = time.monotonic(), ready
            return ready

    async def _completes_request(self, model: PublishedModel) -> bool:
        path, request = _READY_REQUESTS[model.ready]
        body = json.dumps({"model": model.served_as, **request}).encode("ascii")

        async def ask() -> bool:
            async with Answer(self, model, path, [body], "ready", wait_s=0) as connection:
                answer = await _read_answer(connection)
                return connection.answer.status == 200 and (b'"choices"' in answer or b'"data"' in answer)

        try:
            return await asyncio.wait_for(ask(), _READY_S)
        except (EngineUnreachable, EngineFault, asyncio.TimeoutError):
            return False

    def close(self) -> None:
        """Close all connections without a request."""
        for engine in self._idle:
            self.retire_connections(engine)


class Answer:
    """The answer of an engine, as a context manager. (A class costs less for each request than a generator.) Entering
    sends the request, and waits while the engine starts; it raises EngineUnreachable, EngineFault.
    """

    def __init__(
        self,
        engines: Engines,
        model: PublishedModel,
        path: str,
        body: "Sequence[bytes]",
        request_id: str,
        wait_s: float | None = None,
        on_connection: Callable[[EngineConnection], object] = lambda connection: None,
    ) -> None:
        """path: one of the gateway's, never a client's; body: in parts; wait_s: seconds to wait while no process
        listens, None: as the settings say; on_connection: called with each connection before it sends the request.
        """
        self._engines, self._engine, self._body, self._on_connection = engines, model.engine, body, on_connection
        self._deadline = time.monotonic() + (engines.limits.hold if wait_s is None else wait_s)
        self._head = _request_head(model.engine, "POST", path, body, f"X-Request-Id: {request_id}")
        self._retirements_before = engines.retirements[model.engine]
        self._connection: EngineConnection

    async def __aenter__(self) -> EngineConnection:
        engines, engine = self._engines, self._engine
        while True:
            connection = engines.take_idle(engine)
            reused = connection is not None
            try:
                connection = connection or await engines.connect(engine, join_if_small(self._head, self._body))
                self._on_connection(connection)
                await connection.send_request(self._head, self._body)
                self._connection = connection
                return connection
            except EngineUnreachable:  # no byte of the request was sent
                if time.monotonic() >= self._deadline:
                    raise
                await asyncio.sleep(_RETRY_PAUSE_S)
            except RequestNotReceived:
                if not reused:
                    raise
                engines.retire_connections(engine)  # the others are as old
            except BaseException:
                if connection:
                    connection.close()
                raise

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        engine = self._engine
        retired = self._engines.retirements[engine] > self._retirements_before
        self._engines.finish(engine, self._connection, keep_alive=not retired)


async def _connect_unix(path: str) -> socket.socket:
    """Connect a Unix socket. asyncio would count a socket as connected even if the engine's backlog is full."""
    connected = socket.socket(socket.AF_UNIX)
    connected.setblocking(False)
    deadline = time.monotonic() + _CONNECT_S
    try:
        while True:
            try:
                connected.connect(path)
                return connected
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(_BACKLOG_S)
    except BaseException:
        connected.close()
        raise


def _request_head(engine: SocketOrPort, method: str, path: str, body: "Sequence[bytes]", header: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {'engine' if engine.socket else engine}", header]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {sum(map(len, body))}"]
    return "\r\n".join([*lines, "", ""]).encode("ascii")


async def _read_answer(connection: EngineConnection, limit: int = _MAX_ANSWER_BYTES) -> bytes:
    """Read the answer to one of the gateway's own requests, up to this many bytes."""
    answer = bytearray()
    while len(answer) < limit and (part := await connection.next_part()):
        answer += part
    return bytes(answer[:limit])
