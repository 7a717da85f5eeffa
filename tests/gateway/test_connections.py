"""Who may be connected, and how much of one read is handed on at a time."""

import asyncio
import socket
import ssl
from typing import Any

from winhost.gateway.connections import MOST_AHEAD, Accepted, ClientConnection, Clients
from winhost.gateway.strict_http import Framing
from winhost.gateway.trusted_proxies import TrustedProxies


class Transport(asyncio.Transport):
    aborted = False

    def abort(self) -> None:
        self.aborted = True


class Inner(asyncio.Protocol):
    def __init__(self) -> None:
        self.reads: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.reads.append(data)


def connection(clients: Clients) -> tuple[ClientConnection, Transport, Inner]:
    transport, inner = Transport(), Inner()
    made = ClientConnection(lambda: inner, Framing(1_000_000), clients)
    made.accepted(transport)
    return made, transport, inner


def in_a_loop(data: bytes) -> tuple[list[bytes], bool]:
    """What aiohttp gets of one read, and whether the connection was closed."""

    async def told() -> tuple[list[bytes], bool]:
        made, transport, inner = connection(Clients(8, 8, 60, 60))
        made.connection_made(transport)
        made.data_received(data)
        made.connection_lost(None)
        return inner.reads, transport.aborted

    return asyncio.run(told())


def test_what_one_read_brings_is_handed_on_in_one_piece() -> None:
    get = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    reads, closed = in_a_loop(get * MOST_AHEAD)
    assert (len(reads), reads[0].count(b"GET /"), closed) == (1, MOST_AHEAD, False)


def test_no_more_heads_are_read_than_may_be_ahead() -> None:
    assert in_a_loop(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 9_000) == ([], True)


def test_what_came_before_a_refusal_is_handed_on() -> None:
    reads, _ = in_a_loop(b"GET /first HTTP/1.1\r\nHost: a\r\n\r\nnonsense\r\n\r\n")
    assert [b"/first" in reads[0], b"Winhost-Refused: 400" in reads[1]] == [True, True]


def test_a_transport_is_not_paused_before_it_is_read() -> None:
    """Python 3.10 would read it all the same, and TLS would never see what was read."""

    class Paused(Transport):
        paused = False

        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return ours if name == "socket" else ("192.0.2.1", 1)

        def pause_reading(self) -> None:
            self.paused = True

    async def told() -> bool:
        clients = Clients(8, 8, 60, 60)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        accepted = Accepted(lambda: connection(clients)[0], clients, context, TrustedProxies())
        transport = Paused()
        accepted.connection_made(transport)
        for handshake in asyncio.all_tasks() - {asyncio.current_task()}:
            handshake.cancel()
        return transport.paused

    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not asyncio.run(told())


def test_an_address_without_a_key_has_few_connections() -> None:
    clients = Clients(100, 2, 60, 60)
    entered: list[tuple[ClientConnection, Any, Any]] = [connection(clients) for _ in range(5)]
    assert [clients.enter(each, "192.0.2.1") for each, *_ in entered[:3]] == [True, True, False]
    assert clients.enter(entered[3][0], "192.0.2.2")
    clients.has_key(entered[0][0])
    assert clients.enter(entered[4][0], "192.0.2.1")


def test_a_quarter_is_kept_for_those_with_keys_and_the_oldest_without_one_makes_room() -> None:
    clients = Clients(8, 8, 60, 60)
    every = [connection(clients) for _ in range(12)]
    for each, *_ in every[:6]:
        assert clients.enter(each, "")
    clients.has_key(every[0][0])
    for each, *_ in every[6:8]:
        assert clients.enter(each, "")
    assert [transport.aborted for _, transport, _ in every[:3]] == [False, True, False]
    assert clients.now == 7
    for each, *_ in every[2:8]:
        clients.has_key(each)
    assert clients.enter(every[8][0], "")
    clients.has_key(every[8][0])
    assert not clients.enter(every[9][0], "")
    for each, *_ in every:
        clients.leave(each)
        clients.leave(each)
    assert clients.now == 0
    assert clients.enter(every[10][0], "")
