"""A hub of models on loopback, and a second host with its large files, as Hugging Face has them."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REVISION = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_canary-of-the-hub"


@dataclass
class Hub:
    """The hub. files: contents by path; fails: results of the next requests for content: a status, `cut` or `reset`;
    asked: host, path, Range and Authorization of each request.
    """

    files: dict[str, bytes]
    locked: bool = False
    fails: list[int | str] = field(default_factory=list)
    asked: list[tuple[str, str, str | None, str | None]] = field(default_factory=list)
    port: int = 0
    elsewhere: int = 0

    @property
    def source(self) -> str:
        return f"http://127.0.0.1:{self.port}/org/model"

    def lines(self, *paths: str) -> list[str]:
        """Return the lines of a plan. Small files have only the hash of git."""
        return [line_of(path, self.files[path]) for path in paths or self.files]


def line_of(path: str, data: bytes) -> str:
    if len(data) < 100:
        blob = b"blob %d\0" % len(data) + data
        return f"git-sha1:{hashlib.sha1(blob).hexdigest()} {len(data)} {path}"
    return f"sha256:{hashlib.sha256(data).hexdigest()} {len(data)} {path}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    host: str

    def do_GET(self) -> None:
        hub, authorized = self.hub, self.headers.get("Authorization")
        hub.asked.append((self.host, self.path, self.headers.get("Range"), authorized))
        path = self.path.partition(f"/resolve/{REVISION}/")[2] or self.path.partition("/kept/")[2]
        if self.host == "hub" and hub.locked and authorized != f"Bearer {TOKEN}":
            self._send(401 if authorized is None else 403, b"")
        elif path not in hub.files:
            self._send(404, b"")
        elif self.host == "hub":
            self._send(302, b"", Location=f"http://localhost:{hub.elsewhere}/kept/{path}")
        elif hub.fails:
            self._fail(hub.fails.pop(0), hub.files[path])
        else:
            self._content(hub.files[path])

    def _content(self, data: bytes) -> None:
        at = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        if at:
            self._send(206, data[at:], **{"Content-Range": f"bytes {at}-{len(data) - 1}/{len(data)}"})
        else:
            self._send(200, data)

    def _fail(self, how: int | str, data: bytes) -> None:
        if how == "wrong":
            self._content(data[::-1])
        elif how == "cut":
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
        else:
            self._send(int(how), b"", **{"Retry-After": "0"})

    def _send(self, code: int, data: bytes, **more: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(data)), **more}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve both hosts, each on a port of its own."""
    servers = []
    for host in ("hub", "elsewhere"):
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub, "host": host})))
    hub.port, hub.elsewhere = (server.server_port for server in servers)
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
