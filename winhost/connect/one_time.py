"""Offer a file to one host at an HTTP address that nobody can guess, for as long as it is sent.

Plain HTTP, because the host knows the file's SHA-256 from the plan and takes no other.
"""

import logging
import re
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from winhost.connect.guard import own_address
from winhost.connect.logged import logged
from winhost.model.fleet import bracket_ipv6
from winhost.web.served import served

log = logging.getLogger(__name__)

_PIECE = 1 << 20


@contextmanager
def offered(path: Path, toward: str) -> Iterator[str]:
    """Its address, on the interface that leads to a host. Raises OSError where none does."""
    server = _Server((own_address(toward), 0), path)
    with server, served(server), logged(log, toward, f"offer a file on port {server.server_port}"):
        yield server.url


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], path: Path) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.path = path
        self.secret = f"/{secrets.token_hex(32)}"
        super().__init__(address, _Handler)
        self.url = f"http://{bracket_ipv6(address[0])}:{self.server_port}{self.secret}"


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 60

    def do_GET(self) -> None:
        if not secrets.compare_digest(self.path.encode(), self.server.secret.encode()):
            self.send_error(404)
            return
        size = self.server.path.stat().st_size
        wanted = re.fullmatch(r"bytes=(\d{1,15})-", self.headers.get("Range", "bytes=0-"))
        begin = int(wanted[1]) if wanted else 0
        if begin >= size > 0:
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(size - begin))
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{size - 1}/{size}")
        self.end_headers()
        with suppress(OSError), self.server.path.open("rb") as file:  # it asks again for what is still to come
            file.seek(begin)
            while piece := file.read(_PIECE):
                self.wfile.write(piece)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the library
        """Its lines would have the address."""
