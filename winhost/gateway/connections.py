"""Connections of clients: counted when they are accepted, read strictly, then handed to aiohttp. Who is slow or gone
holds nothing, and whoever sends no key takes no place from those who do.
"""

import asyncio
import logging
import ssl
from asyncio import sslproto
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from .fair_selector import WITH_KEY, WITHOUT_KEY
from .strict_http import Framing, Refused
from .trusted_proxies import ProxyHeader, TrustedProxies, WrongHeader

_LOG = logging.getLogger("gateway")
MOST_AHEAD = 16  # requests that a client sent before it had the answer to the first
_KNOWN = 4_096  # addresses that are remembered for a valid key
# OpenSSL's records have 16 KiB. asyncio would keep 256 KiB for each connection, from its handshake on.
sslproto.SSLProtocol.max_size = 32_768  # type: ignore[attr-defined, unused-ignore]  # not in 3.10
# Of one read: asyncio's own 256 KiB would come from the kernel and go back to it each time.
READ_BYTES = 65_536


@dataclass
class Clients:
    """Who may be connected.

    most: connections in total, of which a quarter is kept for those that have sent a valid key; per_address: from one
    address, unless it has sent one; first: seconds for a handshake, and as many again for the head of a request;
    patience: seconds with a client that does not read; limit: is told how many of such connections, by the numbers of
    their sockets, are looked at in a turn of the event loop.
    """

    most: int
    per_address: int
    first: float
    patience: float
    limit: "Callable[[int, int], None]" = lambda number, most: None
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

    def move(self, connection: "ClientConnection", address: str) -> bool:
        """Its proxy says for whom it connects, or for whom it asks now. As `enter`: a key that another client of the
        proxy has sent is not this one's.
        """
        if self._open.get(connection) == address:
            return True
        self.leave(connection)
        return self.enter(connection, address)

    def has_key(self, connection: "ClientConnection") -> None:
        """Its client sent a valid key."""
        if connection in self._without_key:
            del self._without_key[connection]
            self.limit(connection.number, WITH_KEY)
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


class Accepted(asyncio.BufferedProtocol):
    """A connection that was accepted, until its client is let in: after the header of the PROXY protocol and the
    handshake of TLS, where they are to come. Its own buffer takes the header alone: what follows is for TLS to read.
    """

    def __init__(
        self,
        client: "Callable[[], ClientConnection]",
        clients: Clients,
        tls: "ssl.SSLContext | None",
        proxies: TrustedProxies,
    ) -> None:
        self._make, self._clients, self._tls, self._proxies = client, clients, tls, proxies
        self._handshake: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._header = ProxyHeader()
        self._client: ClientConnection
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        client = self._client = self._make()
        client.number = transport.get_extra_info("socket").fileno()
        self._clients.limit(client.number, WITHOUT_KEY)
        self._transport = transport
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]
        client.accepted(transport)
        peer = transport.get_extra_info("peername")
        client.address = peer[0] if isinstance(peer, tuple) else ""
        trusted = self._proxies.has(client.address)
        if not self._clients.enter(client, "" if trusted else client.address):
            transport.abort()
        elif trusted and self._proxies.protocol:
            self._timer = asyncio.get_running_loop().call_later(self._clients.first, client.abort)
        else:
            if trusted:
                client.trust(self._proxies)
            self._let_in()

    def get_buffer(self, sizehint: int) -> bytearray:
        self._buffer = bytearray(self._header.missing())
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._header.feed(self._buffer[:nbytes])
        client = self._client
        try:
            if self._header.missing():
                return
            address = self._header.client()
        except WrongHeader as error:
            _LOG.info("%s sent no header of the PROXY protocol, and is disconnected: %s", client.address, error)
            client.abort()
            return
        self._stop_waiting()
        client.address = address or client.address
        if self._clients.move(client, address):
            self._let_in()
        else:
            client.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._clients.leave(self._client)

    def _stop_waiting(self) -> None:
        if self._timer:
            self._timer.cancel()

    def _let_in(self) -> None:
        transport, client = self._transport, self._client
        if self._tls is None:
            transport.set_protocol(client)
            client.connection_made(transport)
        else:
            # start_tls pauses the transport in its first step, before anything is read. Paused here, before asyncio
            # has begun to read, Python 3.10 would read all the same.
            self._handshake = asyncio.ensure_future(self._secured(transport, client, self._tls))

    async def _secured(self, transport: asyncio.Transport, client: "ClientConnection", tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(
                transport, client, tls, server_side=True, ssl_handshake_timeout=self._clients.first
            )
        except (OSError, asyncio.TimeoutError) as error:  # ssl.SSLError is an OSError
            secured = None
            _forget_frames(error)
        if secured is None:
            transport.abort()
            self._clients.leave(client)
        else:
            client.connection_made(secured)


def _forget_frames(error: "BaseException | None") -> None:
    """They hold the error, and with it all that the connection had: a crowd of those would stay until the garbage
    collector stops everybody to find them.
    """
    while error:
        error.__traceback__ = None
        error = error.__context__


class Source(Protocol):
    """Where an answer comes from."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class ClientConnection(asyncio.Protocol):
    """Stands between a transport and aiohttp's protocol. address: of the client, or of a proxy that does not say for
    whom it asks; empty where there is none; number: of its socket.
    """

    def __init__(self, inner: Callable[[], asyncio.Protocol], framing: Framing, clients: Clients) -> None:
        """inner: makes aiohttp's protocol, once there is a request for it: who is silent costs little."""
        self._make, self._framing, self._clients = inner, framing, clients
        self._inner: asyncio.Protocol | None = None
        self._closed_to_more = False
        self._early: bytearray | None = bytearray()
        self._answered = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._work: set[asyncio.Task[Any]] = set()
        self._source: Source | None = None
        self._full = False
        self._drained: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport
        self.address = ""
        self.number = -1

    def accepted(self, transport: asyncio.Transport) -> None:
        """Before anything is known of its client: what `abort` ends."""
        self._transport = transport

    def trust(self, proxies: TrustedProxies) -> None:
        """It is a proxy's, which says in each head for whom it asks."""
        own = self.address

        def forwarded(value: bytes | None) -> None:
            address = proxies.client_of(value)
            if not self._clients.move(self, address):
                raise Refused("connections-of-address", 429)
            self.address = address or own

        self._framing.forwarded = forwarded

    def abort(self) -> None:
        self._clients.leave(self)
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self._early is None:
            return  # it is lost already
        early, self._early = self._early, None
        self._transport = transport
        self._arm("head", self._clients.first)
        if early:
            self._read(bytes(early))

    def data_received(self, data: bytes) -> None:
        """asyncio hands on what comes with the end of the handshake before it says that there is a connection."""
        if self._early is not None:
            self._early += data
        else:
            self._read(data)

    def _read(self, data: bytes) -> None:
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
            self._hand_on(b"".join(passed))
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
            self._hand_on(refused.request())

    def _hand_on(self, data: bytes) -> None:
        if self._inner is None:
            self._inner = self._make()
            self._inner.connection_made(self._transport)
        self._inner.data_received(data)

    def has_key(self) -> None:
        """Its client sent a valid key."""
        self._clients.has_key(self)

    def answering(self) -> None:
        """A request of this connection is being answered."""
        self._answered += 1

    def tie(self, work: "asyncio.Task[Any]") -> None:
        """The work ends where the client goes away: nobody waits for it."""
        self._work.add(work)

    def untie(self, work: "asyncio.Task[Any]") -> None:
        """It has ended."""
        self._work.discard(work)

    @property
    def write(self) -> Callable[[bytes], None]:
        """Past aiohttp, within the body of an answer that has begun."""
        return self._transport.write

    def close(self) -> None:
        """After what was written."""
        self._transport.close()

    def reads_from(self, source: "Source | None") -> None:
        """It is paused while the client does not read."""
        self._source = source
        if source and self._full:
            source.pause()
        elif source:
            source.resume()

    async def drained(self) -> None:
        """Returns when the client has read most of what was written."""
        if self._full and not self._transport.is_closing():
            self._drained = self._drained or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    def _is_drained(self) -> None:
        if self._drained and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._inner else None

    def pause_writing(self) -> None:
        self._full = True
        if self._inner:
            self._inner.pause_writing()
        if self._source:
            self._source.pause()
        self._arm("reader", self._clients.patience)

    def resume_writing(self) -> None:
        self._full = False
        self._is_drained()
        self._disarm("reader")
        if self._inner:
            self._inner.resume_writing()
        if self._source:
            self._source.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clients.leave(self)
        for name in list(self._timers):
            self._disarm(name)
        self._is_drained()
        for work in self._work:
            work.cancel()
        if self._inner:
            self._inner.connection_lost(exc)
        self._early = None

    def _arm(self, name: str, seconds: float) -> None:
        if name not in self._timers:
            self._timers[name] = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def _disarm(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()
