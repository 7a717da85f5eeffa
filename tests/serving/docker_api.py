"""As much of Docker's API as `docker compose create` asks for: it keeps what containers it was to make."""

import io
import json
import re
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any

from tests.processes import PATIENCE_S

_API = "1.43"


@dataclass
class DockerApi:
    """created: bodies of `containers/create`, by name; volumes: likewise; put: texts of files that were put into
    containers, by path.
    """

    created: dict[str, Any] = field(default_factory=dict)
    volumes: dict[str, Any] = field(default_factory=dict)
    put: dict[str, str] = field(default_factory=dict)

    def answer(self, method: str, path: str, name: str | None, data: bytes) -> tuple[int, Any]:
        if method == "PUT":
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                self.put |= {each.name: archive.extractfile(each).read().decode() for each in archive}  # type: ignore[union-attr]
            return 200, {}
        body = json.loads(data or b"null")
        if method == "POST" and path == "/containers/create":
            self.created[str(name)] = body
            return 201, {"Id": f"{len(self.created):064x}", "Warnings": []}
        if method == "POST" and path == "/volumes/create":
            self.volumes[body["Name"]] = body
            return 201, {**body, "Mountpoint": "/x", "Scope": "local"}
        if method == "POST":
            return 201, {"Id": "0" * 64}
        if found := re.fullmatch(r"/containers/([0-9a-f]{64})/json", path):
            return 200, self._container(int(found[1], 16))
        return self._about(path)

    def _container(self, number: int) -> Any:
        name, body = [*self.created.items()][number - 1]
        labels = {"Config": {"Labels": body["Labels"], "Image": body["Image"]}}
        return {"Id": f"{number:064x}", "Name": f"/{name}", "State": {}, "NetworkSettings": {"Networks": {}}, **labels}

    def _about(self, path: str) -> tuple[int, Any]:
        if path in ("/containers/json", "/networks"):
            return 200, []
        if path.startswith("/images/"):
            return 200, {"Id": f"sha256:{'0' * 64}", "RepoTags": [], "Os": "linux", "Architecture": "amd64"}
        if path in ("/info", "/version"):
            return 200, {"OSType": "linux", "ServerVersion": "25.0.0", "ApiVersion": _API, "Version": "25.0.0"}
        return 404, {"message": f"no such thing: {path}"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: DockerApi

    def _handle(self) -> None:
        path, _, query = re.sub(r"^/v[0-9.]+", "", self.path).partition("?")
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        name = re.search(r"(?:^|&)name=([^&]*)", query)
        known = self.command in ("GET", "HEAD") and path == "/_ping"
        status, found = (200, "OK") if known else self.api.answer(self.command, path, name[1] if name else None, data)
        body = json.dumps(found).encode()
        self.send_response(status)
        for header, value in (("Content-Length", str(len(body))), ("Content-Type", "application/json")):
            self.send_header(header, value)
        self.send_header("Api-Version", _API)
        self.send_header("OSType", "linux")
        with suppress(BrokenPipeError):  # it asks ahead, and does not wait for all answers
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = _handle  # noqa: N815 - as http.server looks for them

    def log_message(self, *_: object) -> None: ...

    def address_string(self) -> str:
        return "compose"


@contextmanager
def serving_docker(socket: Path) -> Iterator[DockerApi]:
    api = DockerApi()
    handler = type("Handler", (_Handler,), {"api": api})
    with ThreadingUnixStreamServer(str(socket), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield api
        finally:
            server.shutdown()
            thread.join(PATIENCE_S)
