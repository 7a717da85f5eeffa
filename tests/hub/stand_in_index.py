"""An index of Python packages on loopback, with its files: PEP 691 in JSON."""

import hashlib
import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from winhost.web.server import run_server


def made_wheel(files: Mapping[str, str]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return data.getvalue()


@dataclass
class StandInIndex:
    """files: their bytes, by their names; listed: what it says of each package instead; asked: paths."""

    files: dict[str, bytes] = field(default_factory=dict)
    listed: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    url: str = ""

    @property
    def index(self) -> str:
        return f"{self.url}/simple"

    def lock(self, *packages: tuple[str, str], marker: str = "") -> str:
        """Of these names and versions."""
        lines: list[str] = []
        for name, version in packages:
            prefix = f"{name.replace('-', '_')}-{version}-"
            hashes = [hashlib.sha256(data).hexdigest() for file, data in self.files.items() if file.startswith(prefix)]
            lines.append(
                " \\\n".join([f"{name}=={version}{marker}", *(f"    --hash=sha256:{each}" for each in hashes)])
            )
        return "\n".join(lines) + "\n"

    def answer(self, path: str) -> tuple[int, bytes]:
        self.asked.append(path)
        *_, folder, name = path.rstrip("/").rsplit("/", 2)
        if folder == "simple":
            return 200, self.listed.get(name) or self._list(name)
        return (200, self.files[name]) if name in self.files else (404, b"")

    def _list(self, package: str) -> bytes:
        found = (
            listed_file(name, f"../../packages/aa/bb/{name}", hashlib.sha256(data).hexdigest(), len(data))
            for name, data in self.files.items()
            if name.partition("-")[0].replace("_", "-") == package
        )
        return json.dumps(listing(package, found)).encode()


def listed_file(name: str, url: str, sha256: str, size: int) -> dict[str, Any]:
    return {"filename": name, "url": url, "hashes": {"sha256": sha256}, "size": size}


def listing(package: str, files: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """An index's page of a package."""
    return {"meta": {"api-version": "1.0"}, "name": package, "files": [*files]}


class LoopbackHandler(BaseHTTPRequestHandler):
    """Says nothing of what it answers."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.get()

    def get(self) -> None:
        raise NotImplementedError

    def body(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def on_loopback(handler: type[LoopbackHandler]) -> Iterator[str]:
    """A server, and its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, run_server(server):
        server.daemon_threads = True
        yield f"http://127.0.0.1:{server.server_port}"


@contextmanager
def serving_index(index: StandInIndex) -> Iterator[StandInIndex]:
    class Handler(LoopbackHandler):
        def get(self) -> None:
            self.body(*index.answer(self.path))

    with on_loopback(Handler) as index.url:
        yield index
