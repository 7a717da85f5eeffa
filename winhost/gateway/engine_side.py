"""Connections to engines, and what the gateway itself asks them."""

import asyncio
import json
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from .engine_connection import EngineConnection, NotBegun, ReadBy, whole_if_small
from .engine_control import EngineControl, EngineFault, NotUp
from .gateway_settings import Limits, PublishedModel
from .settings_values import SocketOrPort

_BETWEEN_TRIES_S = 0.25
_CONNECT_S = 5
_BACKLOG_S = 0.01
_MOST_KEPT = 64  # connections to one engine without a request
_MOST_OF_AN_ANSWER = 1_000_000
_READY_S = 30  # the first completion of an engine may still compile
_READY_HOLDS_S = {True: 15, False: 2}
_READY_REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", {"prompt": "1", "max_tokens": 1}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "1"}], "max_tokens": 1}),
    "embedding": ("/v1/embeddings", {"input": "1"}),
}


class TooLong(Exception):
    """An answer is longer than it may be."""


class Engines:
    """Connections to engines, which are used again after an answer that ended well. An engine may close a kept
    connection just when it gets a request, which is then sent again only if the engine certainly had not read it.
    hung_up: how often `hang_up` was called, by engine.
    """

    def __init__(self, limits: Limits, read_by: ReadBy = lambda fd, read: None) -> None:
        """read_by: FairSelector.read_by."""
        self.limits, self._read_by = limits, read_by
        self._kept: defaultdict[SocketOrPort, dict[EngineConnection, None]] = defaultdict(dict)
        self.hung_up: defaultdict[SocketOrPort, int] = defaultdict(int)  # a Counter calls Python for what it has not
        self._ready: dict[str, tuple[float, bool]] = {}
        self._asking = asyncio.Lock()
        self._aside: defaultdict[SocketOrPort, set[EngineConnection]] = defaultdict(set)

    def kept_one(self, engine: SocketOrPort) -> EngineConnection | None:
        """A connection without a request that can take one; None if there is none."""
        kept = self._kept[engine]
        while kept:
            if (connection := kept.popitem()[0]).wake():
                return connection
            connection.close()
        return None

    def leave(self, engine: SocketOrPort, connection: EngineConnection, kept: bool) -> None:
        """End a request on a connection. kept: another request may use the connection."""
        there = self._kept[engine]
        if not (kept and connection.reusable and len(there) < _MOST_KEPT):
            connection.close()
            return
        connection.keep(lambda: there.pop(connection, None))
        there[connection] = None

    def hang_up(self, engine: SocketOrPort) -> None:
        """Stop using connections to an engine: those without a request close now, the others after their answers."""
        self.hung_up[engine] += 1
        while self._kept[engine]:
            self._kept[engine].popitem()[0].close()
        for connection in self._aside[engine]:
            connection.close()

    async def connected(self, engine: SocketOrPort, first: bytes = b"") -> EngineConnection:
        """Connect. first: sent to a Unix socket at once, before asyncio takes it over, so that the engine begins
        sooner.
        """
        loop = asyncio.get_running_loop()
        silence, sent = self.limits.silence, 0
        try:
            if engine.socket:
                to = await _unix_socket(engine.socket)
                with suppress(OSError):  # it is full, or the engine closed it: asyncio finds out
                    sent = to.send(first) if first else 0
                _, connection = await loop.create_unix_connection(
                    lambda: EngineConnection(silence, sent, self._read_by), sock=to
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
            raise NotUp(str(engine)) from None
        return connection

    def control(self, model: PublishedModel) -> EngineControl:
        """The control of the engine of a model that takes turns."""

        async def call(method: str, path: str, body: "bytes | None", seconds: float) -> "tuple[int, bytes]":
            return await asyncio.wait_for(self._called(model.engine, method, path, body), seconds)

        return EngineControl(model, call, lambda: self.hang_up(model.engine))

    async def _called(self, engine: SocketOrPort, method: str, path: str, body: "bytes | None") -> "tuple[int, bytes]":
        """Call an engine on a new connection, so that a call that moves an engine is never sent twice."""
        parts = [body] if body else []
        connection = await self.connected(engine)
        try:
            await connection.ask(_head(engine, method, path, parts, "Connection: close"), parts)
            return connection.answer.status, await _whole(connection)
        finally:
            connection.close()

    async def metrics(self, model: PublishedModel, most: int) -> bytes:
        """The engine's metrics for Prometheus, in at most this many bytes. `hang_up` ends this, too, so that the engine
        can sleep. Raises NotUp, EngineFault, TooLong.
        """
        connection = await self.connected(model.engine)
        self._aside[model.engine].add(connection)
        try:
            await connection.ask(_head(model.engine, "GET", "/metrics", [], "Connection: close"), [])
            text = await _whole(connection, most + 1)
        finally:
            self._aside[model.engine].discard(connection)
            connection.close()
        if connection.answer.status != 200:
            raise EngineFault(str(connection.answer.status))
        if len(text) > most:
            raise TooLong
        return text

    async def ready(self, model: PublishedModel) -> bool:
        """Tell whether an engine completes a request. The result is kept for a while, however many ask."""
        async with self._asking:
            asked, found = self._ready.get(model.name, (float("-inf"), False))
            if time.monotonic() - asked > _READY_HOLDS_S[found]:
                found = await self._completes(model)
                self._ready[model.name] = time.monotonic(), found
            return found

    async def _completes(self, model: PublishedModel) -> bool:
        path, request = _READY_REQUESTS[model.ready]
        body = json.dumps({"model": model.served_as, **request}).encode("ascii")

        async def asked() -> bool:
            async with Answer(self, model, path, [body], "ready", hold=0) as connection:
                answer = await _whole(connection)
                return connection.answer.status == 200 and (b'"choices"' in answer or b'"data"' in answer)

        try:
            return await asyncio.wait_for(asked(), _READY_S)
        except (NotUp, EngineFault, asyncio.TimeoutError):
            return False

    def close(self) -> None:
        """Close all connections without a request."""
        for engine in self._kept:
            self.hang_up(engine)


class Answer:
    """The answer of an engine, as a context manager, which costs a request less than a generator would. Entering asks
    the engine, and waits while it starts; it raises NotUp, EngineFault.
    """

    def __init__(
        self,
        engines: Engines,
        model: PublishedModel,
        path: str,
        body: "Sequence[bytes]",
        request_id: str,
        hold: float | None = None,
        begun: Callable[[EngineConnection], object] = lambda connection: None,
    ) -> None:
        """path: one of the gateway's, never a client's; body: in parts; hold: seconds to wait while nothing listens;
        begun: called with each connection before it asks.
        """
        self._engines, self._engine, self._body, self._begun = engines, model.engine, body, begun
        self._until = time.monotonic() + (engines.limits.hold if hold is None else hold)
        self._head = _head(model.engine, "POST", path, body, f"X-Request-Id: {request_id}")
        self._before = engines.hung_up[model.engine]
        self._connection: EngineConnection

    async def __aenter__(self) -> EngineConnection:
        engines, engine = self._engines, self._engine
        while True:
            connection = engines.kept_one(engine)
            reused = connection is not None
            try:
                connection = connection or await engines.connected(engine, whole_if_small(self._head, self._body))
                self._begun(connection)
                await connection.ask(self._head, self._body)
                self._connection = connection
                return connection
            except NotUp:  # no byte of the request went anywhere
                if time.monotonic() >= self._until:
                    raise
                await asyncio.sleep(_BETWEEN_TRIES_S)
            except NotBegun:
                if not reused:
                    raise
                engines.hang_up(engine)  # the others are as old
            except BaseException:
                if connection:
                    connection.close()
                raise

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        engine = self._engine
        self._engines.leave(engine, self._connection, kept=self._before == self._engines.hung_up[engine])


async def _unix_socket(path: str) -> socket.socket:
    """A connected socket. asyncio takes a socket for connected even if the engine's backlog is full."""
    to = socket.socket(socket.AF_UNIX)
    to.setblocking(False)
    until = time.monotonic() + _CONNECT_S
    try:
        while True:
            try:
                to.connect(path)
                return to
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise
            await asyncio.sleep(_BACKLOG_S)
    except BaseException:
        to.close()
        raise


def _head(engine: SocketOrPort, method: str, path: str, body: "Sequence[bytes]", header: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {'engine' if engine.socket else engine}", header]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {sum(map(len, body))}"]
    return "\r\n".join([*lines, "", ""]).encode("ascii")


async def _whole(connection: EngineConnection, most: int = _MOST_OF_AN_ANSWER) -> bytes:
    """Read the whole answer to one of the gateway's own questions."""
    answer = bytearray()
    while len(answer) < most and (part := await connection.part()):
        answer += part
    return bytes(answer[:most])
