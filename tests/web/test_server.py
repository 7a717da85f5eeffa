"""A server in a thread answers, sleeps between connections, and ends at once."""

import selectors
import socket
from collections.abc import Iterator
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import pytest

from tests.processes import PATIENCE_S
from winhost.web import server as module
from winhost.web.server import run_server


class Echo(BaseRequestHandler):
    def handle(self) -> None:
        self.request.sendall(self.request.recv(100))


@pytest.fixture
def server() -> Iterator[ThreadingTCPServer]:
    with ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        yield server


def said(server: ThreadingTCPServer, word: bytes) -> bytes:
    with socket.create_connection(server.server_address, timeout=PATIENCE_S) as to:  # type: ignore[arg-type]
        to.sendall(word)
        return to.recv(100)


def test_it_wakes_for_connections_and_for_its_end_alone(
    server: ThreadingTCPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []

    class Counted(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> Any:
            waits.append(timeout)
            return super().select(timeout)

    monkeypatch.setattr(module, "DefaultSelector", Counted)
    with run_server(server):
        assert [said(server, word) for word in (b"a", b"b")] == [b"a", b"b"]
    assert waits == [None] * 3


def test_it_ends_where_its_block_fails_and_can_be_served_again(server: ThreadingTCPServer) -> None:
    with pytest.raises(KeyError), run_server(server):
        raise KeyError
    with run_server(server):
        assert said(server, b"a") == b"a"
