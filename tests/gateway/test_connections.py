"""Limits of connections, and how requests on them are read."""

import asyncio
import errno
import json
import socket
import ssl
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.gateway.running import settings_for
from tests.processes import PATIENCE_S
from winhost.gateway import program
from winhost.gateway.connections import MAX_PIPELINED, ClientConnection, Clients, PendingConnection, Request
from winhost.gateway.fair_selector import FairSelector
from winhost.gateway.gateway_settings import parse_settings
from winhost.gateway.strict_http import Framing
from winhost.gateway.trusted_proxies import TrustedProxies

_CROWD = 20
T = TypeVar("T")


class Transport(asyncio.Transport):
    aborted = False

    def abort(self) -> None:
        self.aborted = True

    written = b""

    def is_closing(self) -> bool:
        return self.aborted

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.aborted = True


class Answers:
    """A stand-in for the front door. seen: target and body of each request, or why it was refused."""

    def __init__(self, kept: bool = True, reads: bool = True) -> None:
        self.seen: list[tuple[str, bytes]] = []
        self._kept, self._reads = kept, reads

    async def __call__(self, request: Request) -> bool:
        body = b""
        while self._reads and (part := await request.next_part()):
            body += part
        self.seen.append((request.refused.code if request.refused else request.head.target, body))
        return self._kept


def connection(clients: Clients, answers: Answers | None = None) -> tuple[ClientConnection, Transport]:
    transport = Transport()
    made = ClientConnection(answers or Answers(), Framing(1_000_000), clients)
    made.set_transport(transport, -1, "")
    return made, transport


def is_closed_after(answers: Answers, *parts: bytes) -> bool:
    """Receive these parts in an event loop. Return whether the connection is closed after the answers."""

    async def told() -> bool:
        made, transport = connection(Clients(8, 8, 60, 60), answers)
        made.connection_made(transport)
        for each in parts:
            made.data_received(each)
            await asyncio.sleep(0)
        while asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.sleep(0)
        closed = transport.aborted
        made.connection_lost(None)
        return closed

    return asyncio.run(told())


GET = b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n"


def test_requests_of_one_read_are_answered_one_after_another() -> None:
    answers = Answers()
    assert not is_closed_after(answers, b"".join(GET % each for each in range(MAX_PIPELINED)))
    assert answers.seen == [(f"/{each}", b"") for each in range(MAX_PIPELINED)]


def test_no_more_heads_are_read_than_may_be_ahead() -> None:
    answers = Answers()
    assert is_closed_after(answers, b"".join(GET % each for each in range(9_000)))


def test_what_came_before_a_refusal_is_answered_before_it() -> None:
    answers = Answers()
    is_closed_after(answers, GET % 1 + b"nonsense\r\n\r\n", GET % 2)
    assert answers.seen == [("/1", b""), ("request-line", b"")]


def test_a_body_that_nobody_read_is_not_taken_for_the_next_request() -> None:
    answers = Answers(reads=False)
    post = b"POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(GET % 2)
    assert not is_closed_after(answers, post + GET % 2 + GET % 3)
    assert not is_closed_after(answers, post, GET % 2, GET % 3)
    assert answers.seen == [("/1", b""), ("/3", b"")] * 2


def test_an_answer_may_be_the_last_of_its_connection() -> None:
    answers = Answers(kept=False)
    assert is_closed_after(answers, GET % 1 + GET % 2)
    assert answers.seen == [("/1", b"")]


def test_an_answer_that_fails_closes_its_connection() -> None:
    class Fails(Answers):
        async def __call__(self, request: Request) -> bool:
            raise ValueError

    assert is_closed_after(Fails(), GET % 1)


def test_a_client_whose_body_nobody_reads_is_paused() -> None:
    class Paused(Transport):
        paused = False

        def pause_reading(self) -> None:
            self.paused = True

        def resume_reading(self) -> None:
            self.paused = False

    async def told() -> list[bool]:
        may = asyncio.get_running_loop().create_future()
        taken = 0

        async def answer(request: Request) -> bool:
            nonlocal taken
            await may
            while part := await request.next_part():
                taken += len(part)
            return True

        transport = Paused()
        made = ClientConnection(answer, Framing(1_000_000), Clients(8, 8, 60, 60))
        made.connection_made(transport)
        made.data_received(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n" + b"x" * 60_000)
        found = [transport.paused]
        made.data_received(b"x" * 60_000)
        found.append(transport.paused)
        may.set_result(None)
        while taken < 120_000:
            await asyncio.sleep(0)
        found.append(transport.paused)
        made.connection_lost(None)
        return found

    assert asyncio.run(told()) == [False, True, False]


def test_a_transport_is_not_paused_before_it_is_read() -> None:
    """Python 3.10 would read in spite of the pause, and TLS would not get these bytes."""

    class Paused(Transport):
        paused = False

        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return ours if name == "socket" else ("192.0.2.1", 1)

        def pause_reading(self) -> None:
            self.paused = True

    async def told() -> bool:
        clients = Clients(8, 8, 60, 60)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        accepted = PendingConnection(lambda: connection(clients)[0], clients, context, TrustedProxies())
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
    entered = [connection(clients) for _ in range(5)]
    assert [clients.admit(each, "192.0.2.1") for each, *_ in entered[:3]] == [True, True, False]
    assert clients.admit(entered[3][0], "192.0.2.2")
    clients.note_key(entered[0][0])
    assert clients.admit(entered[4][0], "192.0.2.1")


def test_a_quarter_is_kept_for_those_with_keys_and_the_oldest_without_one_makes_room() -> None:
    clients = Clients(8, 8, 60, 60)
    every = [connection(clients) for _ in range(12)]
    for each, *_ in every[:6]:
        assert clients.admit(each, "")
    clients.note_key(every[0][0])
    for each, *_ in every[6:8]:
        assert clients.admit(each, "")
    assert [transport.aborted for _, transport in every[:3]] == [False, True, False]
    assert clients.count == 7
    for each, *_ in every[2:8]:
        clients.note_key(each)
    assert clients.admit(every[8][0], "")
    clients.note_key(every[8][0])
    assert not clients.admit(every[9][0], "")
    for each, *_ in every:
        clients.remove(each)
        clients.remove(each)
    assert clients.count == 0
    assert clients.admit(every[10][0], "")


def test_without_a_file_left_nothing_is_accepted_for_a_second(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An immediate retry would take the processor from the connected clients."""
    asked: list[float] = []

    class Full(socket.socket):
        def accept(self) -> Any:
            asked.append(asyncio.get_running_loop().time())
            if len(asked) == 1:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    async def told(selector: FairSelector) -> None:
        settings = parse_settings(json.dumps(settings_for(short)))
        made = asyncio.get_running_loop().create_future()

        def take(accepted: socket.socket, peer: object) -> None:
            made.set_result(None)
            accepted.close()

        monkeypatch.setattr(socket, "socket", Full)
        listening = program.Listening(await program.create_server(settings), selector, take)
        monkeypatch.undo()
        with socket.socket(socket.AF_UNIX) as to:
            to.connect(str(short / "door.sock"))
            await asyncio.wait_for(made, PATIENCE_S)
        listening.close()

    run_by_a_fair_selector(told)
    assert len(asked) == 2
    assert asked[1] - asked[0] >= 1


def run_by_a_fair_selector(work: Callable[[FairSelector], Coroutine[Any, Any, T]]) -> T:
    selector = FairSelector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        return runner.run(work(selector))


def test_of_a_crowd_one_is_accepted_in_a_turn(short: Path) -> None:
    async def told(selector: FairSelector) -> list[int]:
        settings = parse_settings(json.dumps(settings_for(short)))
        server = await program.create_server(settings)
        listening = program.Listening(server, selector, lambda accepted, peer: made.append(accepted))
        turns, until = [0], asyncio.get_running_loop().time() + PATIENCE_S
        with ExitStack() as opened:
            for _ in range(_CROWD):
                opened.enter_context(socket.socket(socket.AF_UNIX)).connect(str(short / "door.sock"))
            while turns[-1] < _CROWD and asyncio.get_running_loop().time() < until:
                await asyncio.sleep(0)
                turns.append(len(made))
            listening.close()
            for each in made:
                each.close()
            await asyncio.sleep(0)
        return turns

    made: list[socket.socket] = []
    turns = run_by_a_fair_selector(told)
    assert max(after - before for before, after in pairwise(turns)) == 1
    assert turns[-1] == _CROWD
