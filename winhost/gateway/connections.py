"""Connections of clients: counted when they are accepted, read strictly, then handed to aiohttp. Who is slow or gone
holds nothing, and whoever sends no key takes no place from those who do.
"""

import asyncio
import ssl
from asyncio import sslproto
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from .strict_http import Framing, Refused

MOST_AHEAD = 16  # requests that a client sent before it had the answer to the first
_KNOWN = 4_096  # addresses that are remembered for a valid key
# OpenSSL's records have 16 KiB. asyncio would keep 256 KiB for each connection, from its handshake on.
sslproto.SSLProtocol.max_size = 32_768  # type: ignore[attr-defined, unused-ignore]  # not in 3.10


@dataclass
class Clients:
    """Who may be connected.

    most: connections in total, of which a quarter is kept for those that have sent a valid key; per_address: from one
    address, unless it has sent one; first: seconds for a handshake, and as many again for the head of a request;
    patience: seconds with a client that does not read.
    """

    most: int
    per_address: int
    first: float
    patience: float
    _open: "dict[ClientConnection, str]" = field(default_factory=dict)
    _without_key: "dict[ClientConnection, None]" = field(default_factory=dict)  # the oldest first
    _from: "Counter[str]" = field(default_factory=Counter)
    _known: "dict[str, None]" = field(default_factory=dict)

    @property
    def now(self) -> int:
        return len(self._open)

    def enter(self, connection: "ClientConnection", address: str) -> bool:
        """Whether it may stay. address: empty where there is none. Where all places are taken, the connection that has
        sent no key for longest makes room.
        """
        if address and self._from[address] >= self.per_address and address not in self._known:
            return False
        if len(self._without_key) >= self.most - self.most // 4 or self.now >= self.most:
            if not self._without_key:
                return False
            next(iter(self._without_key)).abort()
        self._open[connection] = address
        self._without_key[connection] = None
        self._from[address] += 1
        return True

    def has_key(self, connection: "ClientConnection") -> None:
        """Its client sent a valid key."""
        self._without_key.pop(connection, None)
        if address := self._open.get(connection, ""):
            self._known.pop(address, None)
            self._known[address] = None
            if len(self._known) > _KNOWN:
                del self._known[next(iter(self._known))]

    def leave(self, connection: "ClientConnection") -> None:
        """Harmless where it never entered, or left before."""
        address = self._open.pop(connection, None)
        self._without_key.pop(connection, None)
        if address is not None:
            self._from[address] -= 1
            if not self._from[address]:
                del self._from[address]


class Accepted(asyncio.Protocol):
    """A connection that was accepted, until its client is let in: with TLS, after the handshake."""

    def __init__(
        self, client: "Callable[[], ClientConnection]", clients: Clients, tls: "ssl.SSLContext | None"
    ) -> None:
        self._client, self._clients, self._tls = client, clients, tls
        self._handshake: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        client = self._client()
        client.accepted(transport)
        peer = transport.get_extra_info("peername")
        if not self._clients.enter(client, peer[0] if isinstance(peer, tuple) else ""):
            transport.abort()
        elif self._tls is None:
            transport.set_protocol(client)
            client.connection_made(transport)
        else:
            transport.pause_reading()
            self._handshake = asyncio.ensure_future(self._secured(transport, client, self._tls))

    async def _secured(self, transport: asyncio.Transport, client: "ClientConnection", tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(
                transport, client, tls, server_side=True, ssl_handshake_timeout=self._clients.first
            )
        except (OSError, asyncio.TimeoutError):  # ssl.SSLError is an OSError
            secured = None
        if secured is None:
            transport.abort()
            self._clients.leave(client)
        else:
            client.connection_made(secured)


class Source(Protocol):
    """Where an answer comes from."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class ClientConnection(asyncio.Protocol):
    """Stands between a transport and aiohttp's protocol."""

    def __init__(self, inner: asyncio.Protocol, framing: Framing, clients: Clients) -> None:
        self._inner, self._framing, self._clients = inner, framing, clients
        self._closed_to_more = False
        self._answered = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._work: set[asyncio.Task[Any]] = set()
        self._source: Source | None = None
        self._full = False
        self._transport: asyncio.Transport

    def accepted(self, transport: asyncio.Transport) -> None:
        """Before anything is known of its client: what `abort` ends."""
        self._transport = transport

    def abort(self) -> None:
        self._clients.leave(self)
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._inner.connection_made(transport)
        self._arm("head", self._clients.first)

    def data_received(self, data: bytes) -> None:
        """All that one read brought is handed on together: each part by itself would cost as much as all of them."""
        if self._closed_to_more:
            return
        passed, refused = [], None
        try:
            for part in self._framing.feed(data):
                passed.append(part)
                if self._framing.heads - self._answered > MOST_AHEAD:
                    self._transport.abort()
                    return
        except Refused as error:
            refused = error
        if passed:
            self._inner.data_received(b"".join(passed))
        if refused:
            self._refuse(refused)
        if self._framing.in_head:
            self._arm("head", self._clients.first)
        else:
            self._disarm("head")

    def _refuse(self, refused: Refused) -> None:
        self._closed_to_more = True
        if self._framing.in_body:
            self._transport.abort()  # the request is on its way already, and no engine has it before its end
        else:
            self._inner.data_received(refused.request())

    def has_key(self) -> None:
        """Its client sent a valid key."""
        self._clients.has_key(self)

    def answering(self) -> None:
        """A request of this connection is being answered."""
        self._answered += 1

    def tie(self, work: "asyncio.Task[Any]") -> None:
        """The work ends where the client goes away: nobody waits for it."""
        self._work.add(work)
        work.add_done_callback(self._work.discard)

    @property
    def write(self) -> Callable[[bytes], None]:
        """Past aiohttp, within the body of an answer that has begun."""
        return self._transport.write

    def reads_from(self, source: "Source | None") -> None:
        """It is paused while the client does not read."""
        self._source = source
        if source and self._full:
            source.pause()
        elif source:
            source.resume()

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._full = True
        self._inner.pause_writing()
        if self._source:
            self._source.pause()
        self._arm("reader", self._clients.patience)

    def resume_writing(self) -> None:
        self._full = False
        self._disarm("reader")
        self._inner.resume_writing()
        if self._source:
            self._source.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clients.leave(self)
        for name in list(self._timers):
            self._disarm(name)
        for work in self._work:
            work.cancel()
        self._inner.connection_lost(exc)

    def _arm(self, name: str, seconds: float) -> None:
        if name not in self._timers:
            self._timers[name] = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def _disarm(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()
