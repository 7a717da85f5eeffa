"""A registry of images on loopback, by the OCI distribution specification: one image, which needs a password."""

import base64
import hashlib
import io
import json
import os
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USER, PASSWORD = "puller", "canary-of-the-registry"
_RIGHT = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _layer() -> bytes:
    """Return a layer; each one is different."""
    content = os.urandom(16)
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        entry = tarfile.TarInfo("hello")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return raw.getvalue()


def _described(kind: str, data: bytes, **more: Any) -> dict[str, Any]:
    return {"mediaType": kind, "digest": digest_of(data), "size": len(data), **more}


@dataclass
class Registry:
    """The registry. claims: the size of the layer in its manifest, in bytes; locked: the password is needed; asked:
    the paths that were requested with the right password.
    """

    claims: int | None = None
    locked: bool = False
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.layer = _layer()
        rootfs = {"type": "layers", "diff_ids": [digest_of(self.layer)]}
        config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}
        self.config = json.dumps(config).encode()
        layer = _described("application/vnd.oci.image.layer.v1.tar", self.layer)
        layer["size"] = self.claims or layer["size"]
        about = _described("application/vnd.oci.image.config.v1+json", self.config)
        self.manifest = _as_json({"schemaVersion": 2, "mediaType": _MANIFEST, "config": about, "layers": [layer]})
        linux = _described(_MANIFEST, self.manifest, platform={"os": "linux", "architecture": "amd64"})
        self.index = _as_json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [linux]})
        self.blobs = {digest_of(each): each for each in (self.layer, self.config)}
        self.manifests = {
            digest_of(self.manifest): (_MANIFEST, self.manifest),
            digest_of(self.index): (_INDEX, self.index),
        }
        self.port = 0

    @property
    def image(self) -> str:
        return f"127.0.0.1:{self.port}/winhost/test@{digest_of(self.manifest)}"

    @property
    def of_all_machines(self) -> str:
        return f"127.0.0.1:{self.port}/winhost/test@{digest_of(self.index)}"

    def answer(self, path: str) -> tuple[str, bytes] | None:
        last = path.rsplit("/", 1)[-1]
        if path == "/v2/":
            return "application/json", b"{}"
        if "/manifests/" in path:
            return self.manifests.get(last)
        return ("application/octet-stream", self.blobs[last]) if last in self.blobs else None


def _as_json(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: Registry

    def do_GET(self) -> None:
        allowed = self.headers.get("Authorization") == _RIGHT
        if self.registry.locked and not allowed:
            self._send(401, "text/plain", b"", {"WWW-Authenticate": 'Basic realm="here"'})
            return
        if allowed:
            self.registry.asked.append(self.path)
        found = self.registry.answer(self.path)
        if found is None:
            self._send(404, "application/json", b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}', {})
        else:
            self._send(200, *found, {"Docker-Content-Digest": digest_of(found[1])})

    def do_HEAD(self) -> None:
        self.do_GET()

    def _send(self, code: int, kind: str, data: bytes, more: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **more}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def running(registry: Registry) -> Iterator[Registry]:
    """Serve a registry on a port of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"registry": registry}))
    registry.port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
