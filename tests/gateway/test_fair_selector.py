"""The number of clients that the event loop handles in one turn."""

import asyncio
import gc
import selectors
import socket
import ssl
import time
from asyncio import sslproto
from contextlib import ExitStack, closing
from pathlib import Path

from tests.gateway.test_gateway_start import certificate
from winhost.gateway.connections import ClientConnection, Clients, PendingConnection, Request
from winhost.gateway.fair_selector import DONE, NOTHING, QUIET, WITH_KEY, WITHOUT_KEY, FairSelector
from winhost.gateway.strict_http import Framing
from winhost.gateway.trusted_proxies import TrustedProxies

READ = selectors.EVENT_READ


async def answer(request: Request) -> bool:
    return False


def pairs(opened: ExitStack, count: int) -> list[tuple[socket.socket, socket.socket]]:
    """Create connected pairs, of which each second socket has sent bytes."""
    found = [socket.socketpair() for _ in range(count)]
    for ours, theirs in found:
        opened.enter_context(ours)
        opened.enter_context(theirs)
        theirs.sendall(b"x")
    return found


def test_all_engines_and_a_few_clients_are_looked_at_in_a_turn() -> None:
    with ExitStack() as opened, closing(FairSelector()) as selector:
        engines, known, strangers = (pairs(opened, 50) for _ in range(3))
        for group, most in ((known, WITH_KEY), (strangers, WITHOUT_KEY), (engines, None)):
            for ours, _ in group:
                if most:
                    selector.limit(ours.fileno(), most)
                selector.register(ours.fileno(), READ, "data")
        engine_fds, known_fds, strange_fds = (
            {ours.fileno() for ours, _ in group} for group in (engines, known, strangers)
        )
        seen: set[int] = set()
        for _ in range(13):
            came = {key.fd for key, events in selector.select(0) if events == READ}
            assert engine_fds <= came
            assert (len(came & known_fds), len(came & strange_fds)) == (WITH_KEY, WITHOUT_KEY)
            seen |= came
        assert seen == engine_fds | known_fds | strange_fds  # they take turns


def test_a_limit_holds_for_its_socket_alone() -> None:
    with ExitStack() as opened, closing(FairSelector()) as selector:
        found = [ours for ours, _ in pairs(opened, 30)]
        for each in found:
            selector.register(each, READ)
            selector.limit(each.fileno(), WITHOUT_KEY)
        assert len(selector.select(0)) == WITHOUT_KEY
        for each in found:
            selector.limit(each.fileno(), WITH_KEY)
            selector.unregister(each)  # as where nobody reads for a while
        assert selector.select(0) == []
        for each in found:
            selector.register(each, READ)
        assert len(selector.select(0)) == WITH_KEY
        numbers = {each.fileno() for each in found}
        selector.limit(10_000, WITH_KEY)  # of nobody
        for each in found:
            selector.unregister(each)
            each.close()
        later = [ours for ours, _ in pairs(opened, 30)]
        assert numbers & {each.fileno() for each in later}
        for each in later:
            selector.register(each, READ)
        assert len(selector.select(0)) == 30


def test_what_is_registered_is_known_and_can_be_changed() -> None:
    with ExitStack() as opened, closing(FairSelector()) as selector:
        [(ours, _)] = pairs(opened, 1)
        selector.limit(ours.fileno(), WITHOUT_KEY)
        selector.register(ours, READ, 1)
        selector.modify(ours, READ | selectors.EVENT_WRITE, 2)
        [(key, events)] = selector.select(0)
        assert (key.data, events) == (2, READ | selectors.EVENT_WRITE)
        assert selector.get_key(ours) == selector.get_map()[ours.fileno()] == key


def test_what_failed_handshakes_leave_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    clients = Clients(100, 100, 60, 60)

    def accepted() -> PendingConnection:
        def client() -> ClientConnection:
            return ClientConnection(answer, Framing(1), clients)

        return PendingConnection(client, clients, context, TrustedProxies())

    async def all_of_it() -> int:
        server = await asyncio.get_running_loop().create_server(accepted, "127.0.0.1", 0)
        async with server:
            for said in (b"", b"no TLS at all, and long enough to be seen as none", b"\x16\x03\x01"):
                for _ in range(5):
                    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                    while not clients.count:
                        await asyncio.sleep(0.001)
                    writer.write(said)
                    writer.close()
                    while clients.count:
                        await asyncio.sleep(0.001)
            await asyncio.sleep(0)
        return sum(isinstance(each, sslproto.SSLProtocol | ClientConnection) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(all_of_it()) <= 1  # the last one may still be on its way
    finally:
        gc.enable()


def test_a_socket_may_have_a_reader_of_its_own_while_it_is_registered() -> None:
    read: list[int] = []

    def reads() -> int:
        read.append(1)
        return DONE if len(read) < 2 else NOTHING

    with ExitStack() as opened, closing(FairSelector()) as selector:
        [(ours, _)] = pairs(opened, 1)
        selector.read_by(ours.fileno(), reads)  # of nobody yet
        selector.register(ours, READ)
        assert (len(selector.select(0)), read) == (1, [])
        selector.read_by(ours.fileno(), reads)
        assert (selector.select(0), read) == ([], [1])
        assert (len(selector.select(0)), read) == (1, [1, 1])  # it says that others are to look at it
        selector.unregister(ours)
        selector.register(ours, READ)
        assert (len(selector.select(0)), read) == (1, [1, 1])
        selector.read_by(ours.fileno(), reads)
        selector.read_by(ours.fileno(), None)
        assert (len(selector.select(0)), read) == (1, [1, 1])


def test_what_leaves_nothing_to_do_costs_no_turn_of_the_event_loop() -> None:
    read: list[bytes] = []

    with ExitStack() as opened, closing(FairSelector()) as selector:
        [(ours, theirs)] = pairs(opened, 1)

        def reads() -> int:
            read.append(ours.recv(1))
            if len(read) < 3:
                theirs.sendall(b"y")
            return QUIET if len(read) < 4 else DONE

        selector.register(ours, READ)
        selector.read_by(ours.fileno(), reads)
        began = time.monotonic()
        assert (selector.select(0.2), len(read)) == ([], 3)
        assert time.monotonic() - began >= 0.2  # as long as it was asked to wait, and no timer waits longer
        theirs.sendall(b"y")
        assert (selector.select(300), len(read)) == ([], 4)
