"""Connections of clients: what comes is read strictly, then handed to aiohttp; who is slow or gone holds nothing."""

import asyncio
from dataclasses import dataclass
from typing import Any

from .strict_http import Framing, Refused

MOST_AHEAD = 16  # requests that a client sent before it had the answer to the first


@dataclass
class Clients:
    """now: connections; patience: in seconds, with a head that comes slowly and a client that does not read."""

    most: int
    patience: float
    now: int = 0


class ClientConnection(asyncio.Protocol):
    """Stands between a transport and aiohttp's protocol."""

    def __init__(self, inner: asyncio.Protocol, framing: Framing, clients: Clients) -> None:
        self._inner, self._framing, self._clients = inner, framing, clients
        self._closed_to_more = False
        self._answered = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._work: set[asyncio.Task[Any]] = set()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._clients.now += 1
        self._inner.connection_made(transport)
        self._arm("head")
        if self._clients.now > self._clients.most:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._closed_to_more:
            return
        try:
            for passed in self._framing.feed(data):
                self._inner.data_received(passed)
        except Refused as refused:
            self._refuse(refused)
        if self._framing.heads - self._answered > MOST_AHEAD:
            self._transport.abort()
        if self._framing.in_head:
            self._arm("head")
        else:
            self._disarm("head")

    def _refuse(self, refused: Refused) -> None:
        self._closed_to_more = True
        if self._framing.in_body:
            self._transport.abort()  # the request is on its way already, and no engine has it before its end
        else:
            self._inner.data_received(refused.request())

    def answering(self) -> None:
        """A request of this connection is being answered."""
        self._answered += 1

    def tie(self, work: "asyncio.Task[Any]") -> None:
        """The work ends where the client goes away: nobody waits for it."""
        self._work.add(work)
        work.add_done_callback(self._work.discard)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()
        self._arm("reader")

    def resume_writing(self) -> None:
        self._disarm("reader")
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clients.now -= 1
        for name in list(self._timers):
            self._disarm(name)
        for work in self._work:
            work.cancel()
        self._inner.connection_lost(exc)

    def _arm(self, name: str) -> None:
        if name not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[name] = loop.call_later(self._clients.patience, self._transport.abort)

    def _disarm(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()
