"""The transport of clients without TLS."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

from winhost.gateway.fair_selector import FairSelector
from winhost.gateway.plain_transport import PlainTransport

MANY = b"x" * 4_000_000


class Told(asyncio.Protocol):
    def __init__(self) -> None:
        self.said: list[object] = []

    def data_received(self, data: bytes) -> None:
        self.said.append(data)
        if data == b"raise":
            raise ZeroDivisionError

    def pause_writing(self) -> None:
        self.said.append("pause")

    def resume_writing(self) -> None:
        self.said.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.said.append(type(exc))


def run_with_transport(work: Callable[[PlainTransport, Told, socket.socket], Awaitable[Any]]) -> list[object]:
    """Run a story with a transport, and return the calls of its protocol."""

    async def all_of_it() -> None:
        transport = PlainTransport(ours, told, selector)
        transport.begin()
        await work(transport, told, theirs)
        while type(None) not in told.said and ZeroDivisionError not in told.said:
            await asyncio.sleep(0)

    told = Told()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    selector = FairSelector()
    with theirs, closing(asyncio.SelectorEventLoop(selector)) as loop:
        loop.run_until_complete(all_of_it())
    assert ours.fileno() == -1
    return told.said


async def until(what: Callable[[], object]) -> None:
    while not what():
        await asyncio.sleep(0)


def test_what_a_client_does_not_read_is_kept_and_goes_before_the_end() -> None:
    async def work(transport: PlainTransport, told: Told, theirs: socket.socket) -> None:
        assert transport.send(b"now")
        assert not transport.send(MANY)
        assert told.said == ["pause"]
        transport.close()
        assert transport.is_closing()
        taken = 0
        while taken < len(MANY) + 3:
            taken += len(await asyncio.get_running_loop().sock_recv(theirs, 1_000_000))
        assert await asyncio.get_running_loop().sock_recv(theirs, 1) == b""

    assert run_with_transport(work) == ["pause", "resume", type(None)]


def test_nothing_is_read_while_it_is_paused_nor_after_its_end() -> None:
    async def work(transport: PlainTransport, told: Told, theirs: socket.socket) -> None:
        theirs.sendall(b"one")
        await until(lambda: told.said)
        transport.pause_reading()
        theirs.sendall(b"two")
        for _ in range(5):
            await asyncio.sleep(0)
        assert told.said == [b"one"]
        transport.resume_reading()
        await until(lambda: len(told.said) == 2)
        theirs.sendall(b"three")
        transport.abort()
        assert not transport.send(b"to nobody")

    assert run_with_transport(work) == [b"one", b"two", type(None)]


def test_a_client_that_goes_and_a_fault_end_it_alone() -> None:
    async def goes(transport: PlainTransport, told: Told, theirs: socket.socket) -> None:
        theirs.shutdown(socket.SHUT_WR)

    async def faults(transport: PlainTransport, told: Told, theirs: socket.socket) -> None:
        theirs.sendall(b"raise")

    assert run_with_transport(goes) == [type(None)]
    assert run_with_transport(faults) == [b"raise", ZeroDivisionError]
