"""Connections of clients: counted when they are accepted, and read strictly. A client that is slow or gone holds
nothing up, and clients without a key do not keep out those with one.
"""

import asyncio
import logging
import os
import socket
import ssl
from asyncio import sslproto
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from .fair_selector import WITH_KEY, WITHOUT_KEY, FairSelector
from .plain_transport import FIRST_BYTES, READ_BYTES, PlainTransport
from .strict_http import Framing, Head, Refused
from .trusted_proxies import ProxyHeader, TrustedProxies, WrongHeader

_LOG = logging.getLogger("gateway")
MOST_AHEAD = 16  # requests that a client sent before it had the answer to the first
_HELD_BYTES = 65_536  # of bodies; beyond that, nothing more is read from their client
_IDLE_S = 75  # for an open connection without a request
_LINGER_S = 2  # for the rest of a body that was refused: its client may read the answer only after sending all of it
_KNOWN = 4_096  # addresses that sent a valid key and are remembered
# OpenSSL's records have 16 KiB. asyncio would keep 256 KiB for each connection, from its handshake on.
sslproto.SSLProtocol.max_size = 32_768  # type: ignore[attr-defined, unused-ignore]  # not in 3.10


@dataclass
class Clients:
    """The clients that may be connected.

    most: connections in total, of which a quarter is kept for those that have sent a valid key; per_address:
    connections from one address that has sent no valid key; first: seconds for a handshake, and as many again for the
    head of a request; patience: seconds that a client may take without reading; limit: called with the number of a
    socket and how many such sockets one turn of the event loop handles.
    """

    most: int
    per_address: int
    first: float
    patience: float
    limit: "Callable[[int, int], None]" = lambda number, most: None
    _open: "dict[ClientConnection, str]" = field(default_factory=dict)
    _without_key: "dict[ClientConnection, None]" = field(default_factory=dict)  # the oldest first
    _from: "dict[str, int]" = field(default_factory=dict)
    _known: "dict[str, None]" = field(default_factory=dict)

    @property
    def now(self) -> int:
        return len(self._open)

    def enter(self, connection: "ClientConnection", address: str) -> bool:
        """Count a connection, and tell whether it may stay. If there is no room, the connection that has gone longest
        without a key is closed for it. address: empty where there is none.
        """
        if address and self._from.get(address, 0) >= self.per_address and address not in self._known:
            return False
        if len(self._without_key) >= self.most - self.most // 4 or self.now >= self.most:
            if not self._without_key:
                return False
            next(iter(self._without_key)).abort()
        self._open[connection] = address
        self._without_key[connection] = None
        self._from[address] = self._from.get(address, 0) + 1
        return True

    def move(self, connection: "ClientConnection", address: str) -> bool:
        """Count a connection under the address that its proxy names, as `enter` does: a key that another client of the
        proxy sent does not speak for this one.
        """
        if self._open.get(connection) == address:
            return True
        self.leave(connection)
        return self.enter(connection, address)

    def has_key(self, connection: "ClientConnection", more: bool = True) -> None:
        """Note that the client sent a valid key. more: it will send more, which is then looked at sooner."""
        if connection in self._without_key:
            del self._without_key[connection]
            if more:
                self.limit(connection.number, WITH_KEY)
        if address := self._open.get(connection, ""):
            self._known.pop(address, None)
            self._known[address] = None
            if len(self._known) > _KNOWN:
                del self._known[next(iter(self._known))]

    def leave(self, connection: "ClientConnection") -> None:
        """Stop counting a connection, if it is counted."""
        address = self._open.pop(connection, None)
        self._without_key.pop(connection, None)
        if address is not None:
            self._from[address] -= 1
            if not self._from[address]:
                del self._from[address]

    def close(self) -> None:
        for connection in list(self._open):
            connection.close()


def accept_plain(
    accepted: socket.socket,
    peer: object,
    client: "Callable[[], ClientConnection]",
    clients: Clients,
    proxies: TrustedProxies,
    selector: FairSelector,
) -> None:
    """Accept a connection without TLS and PROXY protocol. Its request is read, and begins, in this turn of the loop."""
    found = client()
    transport = PlainTransport(accepted, found, selector)
    found.accepted(transport, accepted.fileno(), peer)
    trusted = proxies.has(found.address)
    if not clients.enter(found, "" if trusted else found.address):
        transport.abort()
        return
    if trusted:
        found.trust(proxies)
    found.connection_made(transport)


class Accepted(asyncio.BufferedProtocol):
    """An accepted connection, until its client is let in: after the header of the PROXY protocol and the TLS handshake,
    where these are expected. Its buffer takes the header alone, because TLS has to read what follows.
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
        number = transport.get_extra_info("socket").fileno()
        client.accepted(transport, number, transport.get_extra_info("peername"))
        self._clients.limit(client.number, WITHOUT_KEY)
        self._transport = transport
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]
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
            client.read_now()
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
            # Its frames hold all that the connection had, and a crowd of them would stay until the garbage collector
            # stops every stream to find them.
            one: BaseException | None = error
            while one:
                one.__traceback__ = None
                one = one.__context__
        if secured is None:
            transport.abort()
            self._clients.leave(client)
        else:
            client.connection_made(secured)


class Source(Protocol):
    """The sender of an answer, such as a connection to an engine."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


# The head of a request that is refused: it asks for nothing, has no key, and closes its connection.
_NO_HEAD = Head("GET", "", 1, 0, False, "", "", False, None)


class Request:
    """A request while it arrives. address: its client's; refused: why it is not read further; whole: all of its body
    has come.
    """

    __slots__ = ("_held", "_wakes", "address", "client", "head", "refused", "whole")

    def __init__(self, head: Head, client: "ClientConnection", refused: Refused | None = None) -> None:
        self.head, self.client, self.refused = head, client, refused
        self.address, self.whole = client.address, refused is not None
        self._held: list[bytes] = []
        self._wakes: asyncio.Future[None] | None = None

    def receive(self, part: bytes, last: bool) -> None:
        self.whole = last
        if part:
            self._held.append(part)
        if self._wakes and not self._wakes.done():
            self._wakes.set_result(None)

    def take(self) -> bytes:
        """Take the part of the body that has come by now."""
        part = b"".join(self._held)
        self._held.clear()
        self.client.took(len(part))
        return part

    async def more(self) -> bytes:
        """The next part of the body; empty at its end."""
        while not self._held and not self.whole:
            self._wakes = asyncio.get_running_loop().create_future()
            await self._wakes
        return self.take()


class ClientConnection(asyncio.Protocol):
    """Turn what a client sends into requests, which are answered one after another.

    address: of the client, or of a proxy that does not say for whom it asks; empty where there is none; number: of the
    socket; gone: the client went away.
    """

    __slots__ = (
        *("address", "number", "gone", "_answer", "_framing", "_clients", "_early", "_requests", "_work"),
        *("_closed_to_more", "_paused", "_held", "_timers", "_source", "_full", "_drained", "_transport"),
    )

    def __init__(self, answer: Callable[[Request], Awaitable[bool]], framing: Framing, clients: Clients) -> None:
        """answer: answers a request, and says whether another may follow on its connection."""
        self._answer, self._framing, self._clients = answer, framing, clients
        self._early: bytearray | None = bytearray()
        self._requests: deque[Request] = deque()  # the first is being answered
        self._work: asyncio.Task[None] | None = None
        self._closed_to_more = self._paused = self.gone = False
        self._held = 0  # bytes of bodies
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._source: Source | None = None
        self._full = False
        self._drained: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport
        self.address = ""
        self.number = -1

    def accepted(self, transport: asyncio.Transport, number: int, peer: object) -> None:
        """Begin, with nothing known but the client's address. transport: what `abort` ends; peer: the socket's."""
        self._transport, self.number = transport, number
        self.address = peer[0] if isinstance(peer, tuple) else ""

    def trust(self, proxies: TrustedProxies) -> None:
        """Believe the client: it is a proxy, and says in each head for whom it asks."""
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
        if early:
            self._read(bytes(early))
        elif isinstance(transport, PlainTransport):
            transport.begin()
        if not (self._requests or self._framing.in_head or self._closed_to_more):
            self._arm("head", self._clients.first)

    # ---- what comes in

    def read_now(self) -> None:
        """Read what has come by the time the connection is accepted, as most requests have, a turn of the event loop
        before asyncio would.
        """
        try:
            data = os.read(self.number, FIRST_BYTES)
        except OSError:  # nothing yet, or an error for asyncio to find
            return
        if data:
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        """Take what the client sends. asyncio calls this before `connection_made` if it comes with the handshake."""
        if self._early is not None:
            self._early += data
        else:
            self._read(data)

    def _read(self, data: bytes) -> None:
        if self._closed_to_more:
            return
        self._disarm("idle")
        try:
            self._understand(data)
        except Refused as refused:
            self._closed_to_more = True
            if self._framing.in_body or len(self._requests) >= MOST_AHEAD:
                self._transport.abort()  # of a body, no engine has anything before its end
                return
            self._requests.append(Request(_NO_HEAD, self, refused))
        if self._held > _HELD_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        if self._framing.in_head:
            self._arm("head", self._clients.first)
        else:
            self._disarm("head")
        self._begin()

    def _understand(self, data: bytes) -> None:
        """Hand heads and parts of bodies to their requests. Raises Refused."""
        framing, requests = self._framing, self._requests
        for found in framing.feed(data):
            if isinstance(found, Head):
                if len(requests) == MOST_AHEAD:
                    raise Refused("too-many-ahead")
                requests.append(Request(found, self))
                found = b""
            self._held += len(found)
            requests[-1].receive(found, last=not framing.in_body)

    def took(self, size: int) -> None:
        """Note that this many bytes of bodies are no longer held here."""
        self._held -= size
        if self._paused and self._held <= _HELD_BYTES and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    # ---- answers

    def _begin(self) -> None:
        if self._work is None and self._requests:
            self._work = asyncio.get_running_loop().create_task(self._work_on(self._requests[0]))

    async def _work_on(self, request: Request) -> None:
        """Answer a request and wait until most of the answer is read; then the next one begins."""
        ended = False
        try:
            kept = await self._answer(request)
            await self.drained()
            request.take()  # drop a body that nobody read
            if not request.whole:
                kept = await self._rest_comes(request) and kept
            ended = True
        finally:
            if not ended:
                self._transport.abort()
        if self.gone:
            return
        self._work = None
        self._requests.popleft()
        if not kept:
            self.close()
        elif self._requests:
            self._begin()
        elif not self._framing.in_head:
            self._arm("idle", _IDLE_S)

    @staticmethod
    async def _rest_comes(request: Request) -> bool:
        """Read the rest of the body for a while: its client may send all of it before it reads the answer."""

        async def read() -> None:
            while await request.more():
                pass

        try:
            await asyncio.wait_for(read(), _LINGER_S)
        except asyncio.TimeoutError:  # another class before Python 3.11
            return False
        return True

    def has_key(self) -> None:
        """Note that the client sent a valid key."""
        request = self._requests[0]
        self._clients.has_key(self, more=request.head.kept or not request.whole)

    @property
    def write(self) -> Callable[[bytes], object]:
        """Write to the client; returns True if the kernel took all of it and nothing else happened."""
        return self._transport.send if isinstance(self._transport, PlainTransport) else self._transport.write

    def close(self) -> None:
        """Close after all that was written has been sent."""
        self._closed_to_more = True
        self._transport.close()

    def reads_from(self, source: "Source | None") -> None:
        """Pause this source while the client does not read."""
        self._source = source
        if source and self._full:
            source.pause()
        elif source:
            source.resume()

    async def drained(self) -> None:
        """Wait until the client has read most of what was written."""
        if self._full and not self._transport.is_closing():
            self._drained = self._drained or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    def _is_drained(self) -> None:
        if self._drained and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    def pause_writing(self) -> None:
        self._full = True
        if self._source:
            self._source.pause()
        self._arm("reader", self._clients.patience)

    def resume_writing(self) -> None:
        self._full = False
        self._is_drained()
        self._disarm("reader")
        if self._source:
            self._source.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = self._closed_to_more = True
        self._clients.leave(self)
        for name in list(self._timers):
            self._disarm(name)
        self._is_drained()
        if self._work:
            self._work.cancel()
        self._early = None

    def _arm(self, name: str, seconds: float) -> None:
        if name not in self._timers:
            self._timers[name] = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def _disarm(self, name: str) -> None:
        if self._timers and (timer := self._timers.pop(name, None)):
            timer.cancel()
