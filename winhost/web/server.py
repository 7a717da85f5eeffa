"""Run one of Python's socket servers in a thread that sleeps while there is no connection."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from selectors import EVENT_READ, DefaultSelector
from socketserver import TCPServer


@contextmanager
def run_server(server: TCPServer) -> Iterator[None]:
    """Serve until the block ends; the server stays open. `serve_forever` would wake twice a second to check whether it
    has to end, which is expensive for hundreds of idle servers.
    """
    end, ended = socket.socketpair()
    server.timeout = 0  # do not wait for a connection that was closed again

    def serve() -> None:
        with DefaultSelector() as selector:
            selector.register(server, EVENT_READ)
            selector.register(ended, EVENT_READ)
            while all(key.fileobj is server for key, _ in selector.select()):
                server.handle_request()

    thread = threading.Thread(target=serve, daemon=True)
    with end, ended:
        thread.start()
        try:
            yield
        finally:
            end.send(b"\0")
            thread.join()
