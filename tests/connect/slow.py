"""Hosts that mean us no good: a relay that drips what a real endpoint says, and listeners that say what they like."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.processes import PATIENCE_S

DRIP_S = 0.05  # a byte each: never silent for a second, and never done


class Relay:
    """Between a client and a real endpoint. From `fast` bytes of the endpoint's on, or from `drip`, it drips them.

    still_drips: some bytes have not gone out; whoever returns now did not wait for the end of an answer.
    """

    def __init__(self, port: int, fast: int | None = None) -> None:
        self._to, self._fast = port, fast
        self._dripping = threading.Event()
        self._stopped = threading.Event()
        self._to_drip = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._open: list[socket.socket] = [self._listening]

    def drip(self) -> None:
        """From now on."""
        self._dripping.set()

    @property
    def still_drips(self) -> bool:
        return self._to_drip > 0

    def __enter__(self) -> "Relay":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                host = socket.create_connection(("127.0.0.1", self._to))
                self._open += [client, host]
                threading.Thread(target=self._copy, args=(client, host, None), daemon=True).start()
                threading.Thread(target=self._copy, args=(host, client, self._fast), daemon=True).start()

    def _copy(self, source: socket.socket, to: socket.socket, fast: int | None) -> None:
        back = to.getpeername()[1] != self._to
        passed = 0
        with suppress(OSError):
            while data := source.recv(65536):
                slow = back and (self._dripping.is_set() or (fast is not None and passed + len(data) > fast))
                if slow:
                    first = max(0, (fast or 0) - passed) if not self._dripping.is_set() else 0
                    to.sendall(data[:first])
                    self._drip(to, data[first:])
                else:
                    to.sendall(data)
                passed += len(data)
        with suppress(OSError):
            to.shutdown(socket.SHUT_WR)

    def _drip(self, to: socket.socket, data: bytes) -> None:
        self._to_drip += len(data)
        for byte in data:
            to.sendall(bytes([byte]))
            self._to_drip -= 1
            if self._stopped.wait(DRIP_S):
                return


@contextmanager
def listening(says: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port of a listener that treats each connection as it likes."""
    stopped = threading.Event()
    opened: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with suppress(OSError, ValueError), connection:
            says(connection)
            stopped.wait(PATIENCE_S)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                opened.append(connection)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield int(server.getsockname()[1])
        stopped.set()
        server.shutdown(socket.SHUT_RDWR)
        for each in opened:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def request(connection: socket.socket) -> bytes:
    """A whole HTTP request."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            raise ValueError
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
    )
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def answering(*answers: bytes) -> Callable[[socket.socket], None]:
    """An answer to each request, the last one to all further ones."""

    def says(connection: socket.socket) -> None:
        left = [*answers]
        while True:
            request(connection)
            connection.sendall(left[0])
            del left[: len(left) > 1]

    return says


def flooding(begins: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    """An answer without an end, as fast as it goes."""

    def says(connection: socket.socket) -> None:
        request(connection)
        connection.sendall(begins)
        while True:
            connection.sendall(piece)

    return says
