"""A hub on loopback with models that a test makes; it can be told to refuse and to lie."""

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from winhost.web.server import run_server as running

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8, "F8_E4M3": 1}


def safetensors(tensors: Mapping[str, tuple[str, list[int]]], data: bool = False) -> bytes:
    """The beginning of a file, with the header of these tensors; data: and the rest of it, empty."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (kind, shape) in tensors.items():
        length = BYTES[kind]
        for each in shape:
            length *= each
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + length]}
        at += length
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at if data else 0)


def part_of(data: bytes, span: str) -> tuple[int, dict[str, str], bytes]:
    first, _, last = span.removeprefix("bytes=").partition("-")
    end = min(int(last) + 1, len(data)) if last else len(data)
    told = {"Content-Range": f"bytes {first}-{end - 1}/{len(data)}"}
    return 206, told, data[int(first) : end]


@dataclass
class StandInHub:
    """files: of the one model, by path; sizes: told in place of their own; about: what else the API says of it;
    answers: status, headers and body by path, in place of everything; token: that files are given for; cut: how many
    bytes of the next answers go out, by path; asked: path and Authorization of each request; spans: path and Range.
    """

    model: str = "org/model"
    files: dict[str, bytes] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    token: str | None = None
    cut: dict[str, list[int]] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    spans: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""

    def put_json(self, path: str, document: object) -> None:
        self.files[path] = json.dumps(document).encode()

    def answer(self, path: str, given: str | None, span: str | None) -> tuple[int, dict[str, str], bytes]:
        self.asked.append((path, given))
        self.spans.append((path, span))
        bare = unquote(urlsplit(path).path)
        if bare in self.answers:
            return self.answers[bare]
        api = f"/api/models/{self.model}"
        if bare == api or bare == f"{api}/revision/main" or bare == f"{api}/revision/{COMMIT}":
            return 200, {}, json.dumps({"id": self.model, "sha": COMMIT, "gated": False} | self.about).encode()
        if bare == f"{api}/tree/{COMMIT}":
            return 200, {}, json.dumps([self._entry(name) for name in self.files]).encode()
        begin = f"/{self.model}/resolve/{COMMIT}/"
        if not bare.startswith(begin) or bare.removeprefix(begin) not in self.files:
            if bare.startswith("/api/models/") and "/revision/" not in bare and "/tree/" not in bare:
                return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
            return 404, {"X-Error-Code": "RevisionNotFound" if "/revision/" in bare else "EntryNotFound"}, b"{}"
        if self.token and given != f"Bearer {self.token}":
            return 401, {"X-Error-Code": "GatedRepo"}, b"{}"
        return self._part(self.files[bare.removeprefix(begin)], span)

    def _part(self, data: bytes, span: str | None) -> tuple[int, dict[str, str], bytes]:
        if span is None:
            return 200, {}, data
        return part_of(data, span)

    def _entry(self, name: str) -> dict[str, Any]:
        data = self.files[name]
        size = self.sizes.get(name, len(data))
        entry = {
            "type": "file",
            "path": name,
            "size": size,
            "oid": hashlib.sha1(b"blob %d\0%b" % (len(data), data)).hexdigest(),
        }
        large = name.endswith((".safetensors", ".bin", ".gguf"))
        return entry | ({"lfs": {"oid": hashlib.sha256(data).hexdigest(), "size": size}} if large else {})


@contextmanager
def serving(hub: StandInHub) -> Iterator[StandInHub]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = hub.answer(self.path, self.headers["Authorization"], self.headers["Range"])
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(ConnectionError):  # whoever asked refused the rest
                cut = hub.cut.get(self.path)
                self.wfile.write(body[: cut.pop(0)] if cut else body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, running(server):
        hub.url = f"http://127.0.0.1:{server.server_port}"
        yield hub
