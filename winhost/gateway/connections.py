"""Connections of clients. They are counted when they are accepted, and their requests are parsed strictly.

A client that is slow or has gone away holds up no other, and clients without a key do not keep out those with one.
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
MAX_PIPELINED = 16  # requests that a client sent before it had the answer to the first
_MAX_HELD_BYTES = 65_536  # of bodies; beyond that, nothing more is read from their client
_IDLE_S = 75  # for an open connection without a request
_LINGER_S = 2  # for the rest of a body that was refused: its client may read the answer only after sending all of it
_MAX_KNOWN_ADDRESSES = 4_096  # addresses that sent a valid key and are remembered
# OpenSSL's records have 16 KiB. asyncio would keep 256 KiB for each connection, from its handshake on.
sslproto.SSLProtocol.max_size = 32_768  # type: ignore[attr-defined, unused-ignore]  # not in 3.10


@dataclass
class Clients:
    """The clients that may be connected.

    max_connections: in total, of which a quarter is reserved for clients that have sent a valid key; per_address:
    connections from one address that has sent no valid key; head_timeout: seconds for a handshake, and as many again
    for the head of a request; read_timeout: seconds for which a client may read nothing; limit_reads: called with the
    file descriptor of a socket and the number of such sockets that one turn of the event loop handles.
    """

    max_connections: int
    per_address: int
    head_timeout: float
    read_timeout: float
    limit_reads: "Callable[[int, int], None]" = lambda number, per_turn: None
    _open: "dict[ClientConnection, str]" = field(default_factory=dict)
    _without_key: "dict[ClientConnection, None]" = field(default_factory=dict)  # the oldest first
    _per_address: "dict[str, int]" = field(default_factory=dict)
    _known_addresses: "dict[str, None]" = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self._open)

    def admit(self, connection: "ClientConnection", address: str) -> bool:
        """Count a connection, and tell whether it may stay. If all connections are taken, the one that has gone longest
        without a key is closed. address: empty for a Unix socket.
        """
        if address and self._per_address.get(address, 0) >= self.per_address and address not in self._known_addresses:
            return False
        without_key_limit = self.max_connections - self.max_connections // 4
        if len(self._without_key) >= without_key_limit or self.count >= self.max_connections:
            if not self._without_key:
                return False
            next(iter(self._without_key)).abort()
        self._open[connection] = address
        self._without_key[connection] = None
        self._per_address[address] = self._per_address.get(address, 0) + 1
        return True

    def move_to(self, connection: "ClientConnection", address: str) -> bool:
        """Count a connection under the address that its proxy names, as `admit` does. A key that another client of the
        proxy sent does not vouch for this client.
        """
        if self._open.get(connection) == address:
            return True
        self.remove(connection)
        return self.admit(connection, address)

    def note_key(self, connection: "ClientConnection", sends_more: bool = True) -> None:
        """Note that the client sent a valid key. sends_more: it will send more, which is then read sooner."""
        if connection in self._without_key:
            del self._without_key[connection]
            if sends_more:
                self.limit_reads(connection.number, WITH_KEY)
        if address := self._open.get(connection, ""):
            self._known_addresses.pop(address, None)
            self._known_addresses[address] = None
            if len(self._known_addresses) > _MAX_KNOWN_ADDRESSES:
                del self._known_addresses[next(iter(self._known_addresses))]

    def remove(self, connection: "ClientConnection") -> None:
        """Stop counting a connection, if it is counted."""
        address = self._open.pop(connection, None)
        self._without_key.pop(connection, None)
        if address is not None:
            self._per_address[address] -= 1
            if not self._per_address[address]:
                del self._per_address[address]

    def close(self) -> None:
        for connection in list(self._open):
            connection.close()


def accept_plain(
    accepted: socket.socket,
    peer: object,
    create_client: "Callable[[], ClientConnection]",
    clients: Clients,
    proxies: TrustedProxies,
    selector: FairSelector,
) -> None:
    """Accept a connection without TLS and PROXY protocol. Its request is read and started in this turn of the event
    loop.
    """
    client = create_client()
    transport = PlainTransport(accepted, client, selector)
    client.set_transport(transport, accepted.fileno(), peer)
    trusted = proxies.is_trusted(client.address)
    if not clients.admit(client, "" if trusted else client.address):
        transport.abort()
        return
    if trusted:
        client.trust_proxy(proxies)
    client.connection_made(transport)


class PendingConnection(asyncio.BufferedProtocol):
    """An accepted connection that still has to send the header of the PROXY protocol, or do its TLS handshake, where
    these are expected. Its buffer holds the header alone, because TLS has to read the bytes after it.
    """

    def __init__(
        self,
        create_client: "Callable[[], ClientConnection]",
        clients: Clients,
        tls: "ssl.SSLContext | None",
        proxies: TrustedProxies,
    ) -> None:
        self._create_client, self._clients, self._tls, self._proxies = create_client, clients, tls, proxies
        self._handshake: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._header = ProxyHeader()
        self._client: ClientConnection
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        client = self._client = self._create_client()
        number = transport.get_extra_info("socket").fileno()
        client.set_transport(transport, number, transport.get_extra_info("peername"))
        self._clients.limit_reads(client.number, WITHOUT_KEY)
        self._transport = transport
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]
        trusted = self._proxies.is_trusted(client.address)
        if not self._clients.admit(client, "" if trusted else client.address):
            transport.abort()
        elif trusted and self._proxies.protocol:
            self._timer = asyncio.get_running_loop().call_later(self._clients.head_timeout, client.abort)
        else:
            if trusted:
                client.trust_proxy(self._proxies)
            self._hand_over()

    def get_buffer(self, sizehint: int) -> bytearray:
        self._buffer = bytearray(self._header.missing_bytes())
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._header.feed(self._buffer[:nbytes])
        client = self._client
        try:
            if self._header.missing_bytes():
                return
            address = self._header.client()
        except WrongHeader as error:
            _LOG.info("%s sent no header of the PROXY protocol, and is disconnected: %s", client.address, error)
            client.abort()
            return
        self._stop_waiting()
        client.address = address or client.address
        if self._clients.move_to(client, address):
            self._hand_over()
        else:
            client.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._clients.remove(self._client)

    def _stop_waiting(self) -> None:
        if self._timer:
            self._timer.cancel()

    def _hand_over(self) -> None:
        transport, client = self._transport, self._client
        if self._tls is None:
            transport.set_protocol(client)
            client.connection_made(transport)
            client.read_now()
        else:
            # start_tls pauses the transport in its first step, before anything is read. Paused here, before asyncio
            # has begun to read, Python 3.10 would read all the same.
            self._handshake = asyncio.ensure_future(self._start_tls(transport, client, self._tls))

    async def _start_tls(self, transport: asyncio.Transport, client: "ClientConnection", tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(
                transport, client, tls, server_side=True, ssl_handshake_timeout=self._clients.head_timeout
            )
        except (OSError, asyncio.TimeoutError) as error:  # ssl.SSLError is an OSError
            secured = None
            # The frames of a traceback refer to everything that the connection had. Many of them would stay until the
            # garbage collector stops every stream to find them.
            cause: BaseException | None = error
            while cause:
                cause.__traceback__ = None
                cause = cause.__context__
        if secured is None:
            transport.abort()
            self._clients.remove(client)
        else:
            client.connection_made(secured)


class Source(Protocol):
    """A sender of an answer that can be paused, such as a connection to an engine."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


# The head of a request whose own head was refused. It has no target and no key, and closes its connection.
_REFUSED_HEAD = Head("GET", "", 1, 0, False, "", "", False, None)


class Request:
    """A request while it arrives. address: its client's; refused: why it is not read further; complete: all of its body
    was received.
    """

    __slots__ = ("_received", "_wakeup", "address", "client", "complete", "head", "refused")

    def __init__(self, head: Head, client: "ClientConnection", refused: Refused | None = None) -> None:
        self.head, self.client, self.refused = head, client, refused
        self.address, self.complete = client.address, refused is not None
        self._received: list[bytes] = []
        self._wakeup: asyncio.Future[None] | None = None

    def receive(self, part: bytes, last: bool) -> None:
        self.complete = last
        if part:
            self._received.append(part)
        if self._wakeup and not self._wakeup.done():
            self._wakeup.set_result(None)

    def take_received(self) -> bytes:
        """Return the part of the body that was received since the last call, and forget it."""
        part = b"".join(self._received)
        self._received.clear()
        self.client.release(len(part))
        return part

    async def next_part(self) -> bytes:
        """Wait for the next part of the body; empty at its end."""
        while not self._received and not self.complete:
            self._wakeup = asyncio.get_running_loop().create_future()
            await self._wakeup
        return self.take_received()


class ClientConnection(asyncio.Protocol):
    """A client's connection. The requests on it are answered one after another.

    address: of the client, or of a proxy that does not name its client; empty for a Unix socket; number: the socket's
    file descriptor; is_gone: the client went away.
    """

    __slots__ = (
        *("address", "number", "is_gone", "_answer", "_framing", "_clients", "_early_data", "_requests", "_task"),
        *(
            "_ignores_input",
            "_paused",
            "_held_bytes",
            "_timers",
            "_source",
            "_write_paused",
            "_drain_waiter",
            "_transport",
        ),
    )

    def __init__(self, answer: Callable[[Request], Awaitable[bool]], framing: Framing, clients: Clients) -> None:
        """answer: answers a request, and returns whether another may follow on its connection."""
        self._answer, self._framing, self._clients = answer, framing, clients
        self._early_data: bytearray | None = bytearray()
        self._requests: deque[Request] = deque()  # the first is being answered
        self._task: asyncio.Task[None] | None = None
        self._ignores_input = self._paused = self.is_gone = False
        self._held_bytes = 0  # bytes of bodies
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._source: Source | None = None
        self._write_paused = False
        self._drain_waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport
        self.address = ""
        self.number = -1

    def set_transport(self, transport: asyncio.Transport, number: int, peer: object) -> None:
        """Set the transport that `abort` closes, and the client's address. peer: the socket's peer name."""
        self._transport, self.number = transport, number
        self.address = peer[0] if isinstance(peer, tuple) else ""

    def trust_proxy(self, proxies: TrustedProxies) -> None:
        """Treat the client as a proxy, which names its own client in the head of each request."""
        proxy_address = self.address

        def use_forwarded_address(value: bytes | None) -> None:
            address = proxies.find_client(value)
            if not self._clients.move_to(self, address):
                raise Refused("connections-of-address", 429)
            self.address = address or proxy_address

        self._framing.on_forwarded = use_forwarded_address

    def abort(self) -> None:
        self._clients.remove(self)
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self._early_data is None:
            return  # the connection is lost already
        early, self._early_data = self._early_data, None
        self._transport = transport
        if early:
            self._read(bytes(early))
        elif isinstance(transport, PlainTransport):
            transport.begin()
        if not (self._requests or self._framing.in_head or self._ignores_input):
            self._start_timer("head", self._clients.head_timeout)

    # ---- reading

    def read_now(self) -> None:
        """Read the bytes that came before the connection was accepted, as most requests do. asyncio would read them a
        turn of the event loop later.
        """
        try:
            data = os.read(self.number, FIRST_BYTES)
        except OSError:  # nothing yet, or an error for asyncio to find
            return
        if data:
            self.data_received(data)

    def data_received(self, data: bytes) -> None:
        """Receive bytes of the client. asyncio calls this before `connection_made` if they come with the handshake."""
        if self._early_data is not None:
            self._early_data += data
        else:
            self._read(data)

    def _read(self, data: bytes) -> None:
        if self._ignores_input:
            return
        self._stop_timer("idle")
        try:
            self._parse(data)
        except Refused as refused:
            self._ignores_input = True
            if self._framing.in_body or len(self._requests) >= MAX_PIPELINED:
                self._transport.abort()  # no engine has got a part of this body
                return
            self._requests.append(Request(_REFUSED_HEAD, self, refused))
        if self._held_bytes > _MAX_HELD_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        if self._framing.in_head:
            self._start_timer("head", self._clients.head_timeout)
        else:
            self._stop_timer("head")
        self._answer_next()

    def _parse(self, data: bytes) -> None:
        """Create requests for heads, and hand them the parts of their bodies. Raises Refused."""
        framing, requests = self._framing, self._requests
        for part in framing.feed(data):
            if isinstance(part, Head):
                if len(requests) == MAX_PIPELINED:
                    raise Refused("too-many-ahead")
                requests.append(Request(part, self))
                part = b""
            self._held_bytes += len(part)
            requests[-1].receive(part, last=not framing.in_body)

    def release(self, size: int) -> None:
        """Note that this many bytes of bodies are no longer held here."""
        self._held_bytes -= size
        if self._paused and self._held_bytes <= _MAX_HELD_BYTES and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    # ---- answers

    def _answer_next(self) -> None:
        if self._task is None and self._requests:
            self._task = asyncio.get_running_loop().create_task(self._answer_request(self._requests[0]))

    async def _answer_request(self, request: Request) -> None:
        """Answer a request, wait until its client has read most of the answer, and start the next request."""
        answered = False
        try:
            keep_alive = await self._answer(request)
            await self.drain()
            request.take_received()  # drop a body that nobody read
            if not request.complete:
                keep_alive = await self._drain_body(request) and keep_alive
            answered = True
        finally:
            if not answered:
                self._transport.abort()
        if self.is_gone:
            return
        self._task = None
        self._requests.popleft()
        if not keep_alive:
            self.close()
        elif self._requests:
            self._answer_next()
        elif not self._framing.in_head:
            self._start_timer("idle", _IDLE_S)

    @staticmethod
    async def _drain_body(request: Request) -> bool:
        """Read and drop the rest of a body for up to `_LINGER_S`, and tell whether it ended. A client may send all of
        its body before it reads the answer.
        """

        async def read() -> None:
            while await request.next_part():
                pass

        try:
            await asyncio.wait_for(read(), _LINGER_S)
        except asyncio.TimeoutError:  # another class before Python 3.11
            return False
        return True

    def note_key(self) -> None:
        """Note that the client sent a valid key."""
        request = self._requests[0]
        self._clients.note_key(self, sends_more=request.head.keep_alive or not request.complete)

    @property
    def write(self) -> Callable[[bytes], object]:
        """A function that writes to the client. It returns True if the kernel took all bytes and no callback ran."""
        return self._transport.send if isinstance(self._transport, PlainTransport) else self._transport.write

    def close(self) -> None:
        """Close after all that was written has been sent."""
        self._ignores_input = True
        self._transport.close()

    def set_source(self, source: "Source | None") -> None:
        """Set the source of the answer, which is paused while the client does not read; None after the answer."""
        self._source = source
        if source and self._write_paused:
            source.pause()
        elif source:
            source.resume()

    async def drain(self) -> None:
        """Wait until the client has read most of what was written."""
        if self._write_paused and not self._transport.is_closing():
            self._drain_waiter = self._drain_waiter or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drain_waiter)

    def _end_drain(self) -> None:
        if self._drain_waiter and not self._drain_waiter.done():
            self._drain_waiter.set_result(None)
        self._drain_waiter = None

    def pause_writing(self) -> None:
        self._write_paused = True
        if self._source:
            self._source.pause()
        self._start_timer("reader", self._clients.read_timeout)

    def resume_writing(self) -> None:
        self._write_paused = False
        self._end_drain()
        self._stop_timer("reader")
        if self._source:
            self._source.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_gone = self._ignores_input = True
        self._clients.remove(self)
        for name in list(self._timers):
            self._stop_timer(name)
        self._end_drain()
        if self._task:
            self._task.cancel()
        self._early_data = None

    def _start_timer(self, name: str, seconds: float) -> None:
        if name not in self._timers:
            self._timers[name] = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def _stop_timer(self, name: str) -> None:
        if self._timers and (timer := self._timers.pop(name, None)):
            timer.cancel()
