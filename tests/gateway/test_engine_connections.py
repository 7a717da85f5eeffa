"""Connections to an engine: when one is reused, and when a request is sent again."""

import asyncio
import contextlib
import re
import select
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S
from tests.rows import each_row
from winhost.gateway import engine_connection
from winhost.gateway.connections import ClientConnection, Clients, Request
from winhost.gateway.engine_control import EngineFault
from winhost.gateway.engines import Answer, Engines
from winhost.gateway.gateway_settings import Limits, PublishedModel
from winhost.gateway.settings_values import SocketOrPort
from winhost.gateway.strict_http import Framing

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n"


class Scripted:
    """An engine that follows a script on each connection. seen: bodies, with the number of the connection; ended:
    numbers of those that the gateway closed; spoke: it has closed one, or sent bytes without a request.
    """

    def __init__(self, *script: Callable[["Scripted", socket.socket, int], None]) -> None:
        self.script = script
        self.seen: list[tuple[int, bytes]] = []
        self.ended: set[int] = set()
        self.opened = 0
        self.spoke = threading.Event()

    def serve(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it is closed at the end of the test
            while True:
                to, _ = listening.accept()
                number, self.opened = self.opened, self.opened + 1
                step = self.script[min(number, len(self.script) - 1)]
                threading.Thread(target=self._one, args=(step, to, number), daemon=True).start()

    def _one(self, step: Callable[["Scripted", socket.socket, int], None], to: socket.socket, number: int) -> None:
        to.settimeout(PATIENCE_S)
        with to, contextlib.suppress(OSError):
            step(self, to, number)
        self.spoke.set()

    def request(self, to: socket.socket, number: int) -> bool:
        """Read one request; False at the end of the connection."""
        data = b""
        while not (
            found := re.search(rb"Content-Length: (\d+)\r\n.*?\r\n\r\n|Content-Length: (\d+)\r\n\r\n", data, re.S)
        ):
            part = to.recv(65536)
            if not part:
                self.ended.add(number)
                return False
            data += part
        length, body = int(found[1] or found[2]), data[found.end() :]
        while len(body) < length:
            body += to.recv(65536)
        self.seen.append((number, body[:20]))
        return True


def answering(*answers: bytes, then: Callable[[Scripted, socket.socket, int], None] | None = None):  # type: ignore[no-untyped-def]
    """Return a script that sends these answers, and the last one again and again."""

    def step(engine: Scripted, to: socket.socket, number: int) -> None:
        left = list(answers)
        while (left or then is None) and engine.request(to, number):
            to.sendall(left.pop(0) if left else answers[-1])
        if then is not None:
            then(engine, to, number)

    return step


def closes(engine: Scripted, to: socket.socket, number: int) -> None:
    """Close the connection at once, without a request."""


def leaves_unread(engine: Scripted, to: socket.socket, number: int) -> None:
    """Close the connection when the next request has come, without reading it."""
    select.select([to], [], [], PATIENCE_S)


def reads_and_closes(engine: Scripted, to: socket.socket, number: int) -> None:
    """Read a request and close the connection, as an engine that dies does."""
    engine.request(to, number)


def says_unasked(engine: Scripted, to: socket.socket, number: int) -> None:
    to.sendall(WHOLE)
    engine.spoke.set()
    engine.request(to, number)


@contextmanager
def listens(engine: Scripted, folder: Path, family: int) -> Iterator[SocketOrPort]:
    with socket.socket(family) as listening:
        listening.bind(str(folder / "engine.sock") if family == socket.AF_UNIX else ("127.0.0.1", 0))
        listening.listen(512)
        threading.Thread(target=engine.serve, args=(listening,), daemon=True).start()
        port = listening.getsockname()[1] if family == socket.AF_INET else 0
        unix = family == socket.AF_UNIX
        yield SocketOrPort(socket=str(folder / "engine.sock")) if unix else SocketOrPort(address="127.0.0.1", port=port)
        listening.shutdown(socket.SHUT_RDWR)


class Asking:
    """The gateway's connections to the engine."""

    def __init__(self, place: SocketOrPort) -> None:
        self.engines = Engines(Limits())
        self.model = PublishedModel("m", place, "m", "completion")

    async def ask(self, body: bytes = b"{}", whole: bool = True) -> bytes:
        """Send a request. Return the answer, or the fault; not whole: read only its first part."""
        try:
            async with Answer(self.engines, self.model, "/v1/completions", [body], "id", wait_s=0) as connection:
                found = b""
                while part := await connection.next_part():
                    found += part
                    if not whole:
                        break
                return found
        except EngineFault:
            return b"fault"


def run(work: Callable[[Asking], Awaitable[None]], place: SocketOrPort) -> None:
    async def whole() -> None:
        asking = Asking(place)
        try:
            await work(asking)
        finally:
            asking.engines.close()
            await asyncio.sleep(0)  # transports close in the next turn of the loop

    asyncio.run(whole())


FAMILIES = [socket.AF_UNIX, socket.AF_INET]
Step = Callable[[Scripted, socket.socket, int], None]


async def until(what: Callable[[], bool]) -> None:
    async def polled() -> None:
        while not what():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(polled(), PATIENCE_S)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_connection_is_used_again_for_whatever_ended_as_it_should(short: Path, family: int) -> None:
    engine = Scripted(answering(WHOLE, CHUNKED + b"0\r\n\r\n", WHOLE.replace(b"200 OK", b"404 No")))
    with listens(engine, short, family) as place:

        async def all_of_it(asking: Asking) -> None:
            assert [await asking.ask() for _ in range(5)] == [b"one"] * 5
            asking.engines.close()
            await until(lambda: engine.ended == {0})

        run(all_of_it, place)
    assert [number for number, _ in engine.seen] == [0] * 5


@each_row(
    ("what", "answer", "found"),
    [
        ("a cut answer", WHOLE[:-1], b"fault"),
        ("a cut stream", CHUNKED, b"fault"),
        ("said to close", WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), b"one"),
        ("an older HTTP", WHOLE.replace(b"/1.1", b"/1.0"), b"one"),
        ("more than an answer", WHOLE + b"more", b"one"),
        ("no length", b"HTTP/1.1 200 OK\r\n\r\none", b"one"),
        ("no HTTP", b"one", b"fault"),
    ],
)
def test_what_did_not_end_as_it_should_is_not_used_again(short: Path, what: str, answer: bytes, found: bytes) -> None:
    (short / what).mkdir()
    engine = Scripted(answering(answer, then=closes), answering(WHOLE))
    with listens(engine, short / what, socket.AF_UNIX) as place:

        async def all_of_it(asking: Asking) -> None:
            assert [await asking.ask(), await asking.ask()] == [found, b"one"]

        run(all_of_it, place)
    assert [number for number, _ in engine.seen] == [0, 1]


def test_an_answer_that_comes_at_once_is_one_write(short: Path) -> None:
    async def answer(request: Request) -> bool:
        return False

    class Client(ClientConnection):
        def __init__(self) -> None:
            super().__init__(answer, Framing(1), Clients(1, 1, 60, 60))
            self.written: list[bytes] = []

        @property
        def write(self) -> Callable[[bytes], None]:
            return self.written.append

    engine = Scripted(answering(WHOLE, CHUNKED + b"0\r\n\r\n"))
    with listens(engine, short, socket.AF_UNIX) as place:

        async def all_of_it(asking: Asking) -> None:
            for framed, written in ((False, b"head one"), (True, b"head 3\r\none\r\n0\r\n\r\n")):
                client = Client()
                async with Answer(asking.engines, asking.model, "/v1/completions", [b"{}"], "id") as connection:
                    await connection.wait_for_body()
                    await connection.relay(client, b"head ", framed, None)
                assert client.written == [written]

        run(all_of_it, place)


def test_an_answer_that_nobody_read_to_its_end_closes_its_connection(short: Path) -> None:
    engine = Scripted(answering(CHUNKED))
    with listens(engine, short, socket.AF_UNIX) as place:

        async def all_of_it(asking: Asking) -> None:
            assert await asking.ask(whole=False) == b"one"
            await until(lambda: engine.ended == {0})

        run(all_of_it, place)


def test_a_client_that_was_slow_to_the_end_leaves_a_connection_that_is_read(short: Path) -> None:
    engine = Scripted(answering(WHOLE))
    with listens(engine, short, socket.AF_UNIX) as place:

        async def all_of_it(asking: Asking) -> None:
            async with Answer(asking.engines, asking.model, "/v1/completions", [b"{}"], "id") as connection:
                assert await connection.next_part() == b"one"
                connection.pause()
            assert await asyncio.wait_for(asking.ask(), PATIENCE_S) == b"one"

        run(all_of_it, place)
    assert [number for number, _ in engine.seen] == [0, 0]


def test_a_request_that_was_not_sent_whole_closes_its_connection(short: Path) -> None:
    def answers_early(engine: Scripted, to: socket.socket, number: int) -> None:
        to.recv(1000)
        to.sendall(WHOLE)
        while to.recv(65536):
            pass
        engine.ended.add(number)

    engine = Scripted(answers_early, answering(WHOLE))
    with listens(engine, short, socket.AF_UNIX) as place:

        async def all_of_it(asking: Asking) -> None:
            assert await asking.ask(b"x" * 50_000_000) == b"one"
            await until(lambda: engine.ended == {0})
            assert await asking.ask() == b"one"

        run(all_of_it, place)
    assert engine.opened == 2


@each_row(
    ("what", "family", "then", "found", "seen"),
    [
        ("closed while idle", socket.AF_UNIX, closes, b"one", [0, 1]),
        ("closed while idle, TCP", socket.AF_INET, closes, b"one", [0, 1]),
        ("said something unasked", socket.AF_UNIX, says_unasked, b"one", [0, 1]),
        ("left unread", socket.AF_UNIX, leaves_unread, b"one", [0, 1]),
        ("read, and closed", socket.AF_UNIX, reads_and_closes, b"fault", [0, 0]),
        ("read, and closed, TCP", socket.AF_INET, reads_and_closes, b"fault", [0, 0]),
        ("acknowledged, and closed, TCP", socket.AF_INET, leaves_unread, b"fault", [0]),
    ],
)
def test_a_request_is_sent_again_only_where_its_engine_cannot_have_begun_it(
    short: Path, what: str, family: int, then: Step, found: bytes, seen: list[int]
) -> None:
    (short / what).mkdir()
    engine = Scripted(answering(WHOLE, then=then), answering(WHOLE))
    with listens(engine, short / what, family) as place:

        async def all_of_it(asking: Asking) -> None:
            assert await asking.ask() == b"one"
            if then in (closes, says_unasked):  # it comes while the event loop looks elsewhere
                assert engine.spoke.wait(PATIENCE_S)
            assert await asking.ask() == found, what

        run(all_of_it, place)
    assert [number for number, _ in engine.seen] == seen


def test_a_request_on_a_new_connection_is_sent_once(short: Path) -> None:
    engine = Scripted(reads_and_closes, answering(WHOLE))
    with listens(engine, short, socket.AF_UNIX) as place:

        async def all_of_it(asking: Asking) -> None:
            for body, found in ((b"first", b"fault"), (b"second", b"one"), (b"x" * 500_000, b"one")):
                assert await asking.ask(body) == found

        run(all_of_it, place)
    assert engine.seen == [(0, b"first"), (1, b"second"), (1, b"x" * 20)]


def test_an_engine_that_moves_keeps_no_connection(short: Path) -> None:
    engine = Scripted(answering(WHOLE))
    with listens(engine, short, socket.AF_UNIX) as place:

        async def all_of_it(asking: Asking) -> None:
            control = asking.engines.control(asking.model)
            await asking.ask()
            control.retire_connections()
            await until(lambda: engine.ended == {0})
            async with Answer(asking.engines, asking.model, "/v1/completions", [b"{}"], "id") as connection:
                control.retire_connections()  # one that is busy then is closed after its answer
                assert await connection.next_part() == b"one"
            await until(lambda: engine.ended == {0, 1})

        run(all_of_it, place)


def test_so_many_connections_are_kept_and_no_more(short: Path) -> None:
    engine = Scripted(answering(WHOLE))
    with listens(engine, short, socket.AF_UNIX) as place:

        async def all_of_it(asking: Asking) -> None:
            assert await asyncio.gather(*(asking.ask() for _ in range(80))) == [b"one"] * 80
            await until(lambda: len(engine.ended) == engine.opened - 64)
            asking.engines.close()
            await until(lambda: len(engine.ended) == engine.opened)

        run(all_of_it, place)


def test_requests_beyond_the_backlog_of_an_engine_wait_for_it(short: Path) -> None:
    engine = Scripted(answering(WHOLE))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(short / "engine.sock"))
        listening.listen(1)

        async def all_of_it(asking: Asking) -> None:
            asked = [asyncio.ensure_future(asking.ask()) for _ in range(20)]
            await asyncio.sleep(0.1)
            threading.Thread(target=engine.serve, args=(listening,), daemon=True).start()
            assert await asyncio.gather(*asked) == [b"one"] * 20

        run(all_of_it, SocketOrPort(socket=str(short / "engine.sock")))
        listening.shutdown(socket.SHUT_RDWR)
    assert len(engine.seen) == 20


def test_a_connection_without_a_request_is_closed_before_its_engine_would(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_connection, "IDLE_S", 0.05)
    engine = Scripted(answering(WHOLE))
    with listens(engine, short, socket.AF_UNIX) as place:

        async def all_of_it(asking: Asking) -> None:
            assert await asking.ask() == b"one"
            await until(lambda: engine.ended == {0})

        run(all_of_it, place)
