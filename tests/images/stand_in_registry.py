"""A registry on loopback, with its authority for tokens; it can be told to lie."""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.hub.stand_in_hub import part_of
from winhost.web.server import run_server as running

OCI = "application/vnd.oci.image."
INDEX, MANIFEST = f"{OCI}index.v1+json", f"{OCI}manifest.v1+json"
TOKEN = "token-canary-of-the-registry"


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def blob(data: bytes, kind: str) -> dict[str, Any]:
    return {"mediaType": kind, "digest": sha256(data), "size": len(data)}


@dataclass
class StandInRegistry:
    """answers: status, headers and body by path below /v2/NAME/; entry: USER:PASSWORD that the authority wants;
    asked: method, path and Authorization of each request; spans: the ranges that were asked for; open: no token is
    wanted.
    """

    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    entry: str | None = None
    challenge: str | None = None
    open: bool = False
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    spans: list[str] = field(default_factory=list)
    host: str = ""

    def put(self, data: bytes, kind: str, tag: str | None = None) -> str:
        """A manifest, by its digest and perhaps a tag."""
        digest = sha256(data)
        for name in filter(None, (digest, tag)):
            headers = {"Content-Type": kind, "Docker-Content-Digest": digest}
            self.answers[f"manifests/{name}"] = (200, headers, data)
        return digest

    def put_image(self, layers: tuple[bytes, ...] = (b"layer one", b"layer two"), tag: str | None = None) -> str:
        config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": {"layers": len(layers)}}).encode()
        for data in (config, *layers):
            self.answers[f"blobs/{sha256(data)}"] = (200, {}, data)
        made = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": blob(config, f"{OCI}config.v1+json"),
            "layers": [blob(data, f"{OCI}layer.v1.tar+gzip") for data in layers],
        }
        return self.put(json.dumps(made).encode(), MANIFEST, tag)

    def put_index(self, by_platform: dict[str, str], tag: str) -> str:
        manifests = []
        for platform, digest in by_platform.items():
            system, architecture = platform.split("/")
            size = len(self.answers[f"manifests/{digest}"][2])
            named = {"os": system, "architecture": architecture}
            manifests.append({"mediaType": MANIFEST, "digest": digest, "size": size, "platform": named})
        made = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
        return self.put(json.dumps(made).encode(), INDEX, tag)

    def answer(self, method: str, path: str, given: str | None) -> tuple[int, dict[str, str], bytes]:
        self.asked.append((method, path, given))
        parts = urlsplit(path)
        if parts.path == "/token":
            return self._token(parse_qs(parts.query), given)
        if not self.open and given != f"Bearer {TOKEN}":
            wants = self.challenge or f'Bearer realm="http://{self.host}/token",service="stand-in",scope="all:all:*"'
            return 401, {"WWW-Authenticate": wants}, b"{}"
        return self.answers.get(parts.path.removeprefix("/v2/org/engine/"), (404, {}, b"{}"))

    def _token(self, query: dict[str, list[str]], given: str | None) -> tuple[int, dict[str, str], bytes]:
        wanted = f"Basic {base64.b64encode(self.entry.encode()).decode()}" if self.entry else None
        right = (
            given == wanted and query["scope"] == ["repository:org/engine:pull"] and query["service"] == ["stand-in"]
        )
        return (200, {}, json.dumps({"token": TOKEN}).encode()) if right else (401, {}, b"{}")


@contextmanager
def serving(registry: StandInRegistry) -> Iterator[StandInRegistry]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = registry.answer(self.command, self.path, self.headers["Authorization"])
            if status == 200 and (span := self.headers["Range"]):
                registry.spans.append(span)
                status, more, body = part_of(body, span)
                headers = headers | more
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(ConnectionError):  # whoever asked refused the rest
                self.wfile.write(b"" if self.command == "HEAD" else body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, running(server):
        registry.host = f"127.0.0.1:{server.server_port}"
        yield registry
