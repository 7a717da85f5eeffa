"""Serve a file to one host at a secret HTTP address while the file is being sent.

Plain HTTP is enough, because the host checks the file by its SHA-256, which it knows from the plan.
"""

import logging
import re
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from winhost.connect.guard import local_address
from winhost.connect.logged import logged
from winhost.model.fleet import bracket_ipv6
from winhost.web.server import run_server

log = logging.getLogger(__name__)

_PIECE = 1 << 20


@contextmanager
def serve_file(path: Path, host_address: str) -> Iterator[str]:
    """Serve a file on the interface with the route to a host. Yields its URL. Raises OSError if there is no route."""
    server = _Server((local_address(host_address), 0), path)
    with server, run_server(server), logged(log, host_address, f"offer a file on port {server.server_port}"):
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
        byte_range = re.fullmatch(r"bytes=(\d{1,15})-", self.headers.get("Range", "bytes=0-"))
        offset = int(byte_range[1]) if byte_range else 0
        if offset >= size > 0:
            self.send_error(416)
            return
        self.send_response(206 if offset else 200)
        self.send_header("Content-Length", str(size - offset))
        if offset:
            self.send_header("Content-Range", f"bytes {offset}-{size - 1}/{size}")
        self.end_headers()
        with suppress(OSError), self.server.path.open("rb") as file:  # the host requests the remaining part again
            file.seek(offset)
            while piece := file.read(_PIECE):
                self.wfile.write(piece)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the library
        """Log nothing: the lines would have the secret address."""
