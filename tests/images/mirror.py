"""A mirror on loopback that can be told to fail, and keys to sign what lies there."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pysequoia

from winhost.web.server import run_server as running


@dataclass
class Mirror:
    """files: by path. cut: how many bytes go out before the connection ends, one for each answer to come; status: of
    answers to come; whole: ranges are not heard; asked: path and range of each request.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    cut: list[int] = field(default_factory=list)
    status: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    whole: bool = False
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    url: str = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        wanted = handler.headers["Range"]
        self.asked.append((handler.path, wanted))
        data = self.files.get(handler.path)
        status = self.status.pop(0) if self.status else 200 if data is not None else 404
        data = data or b""
        begin = int(wanted[6:-1]) if wanted and status == 200 and not self.whole else 0
        told = {"Content-Length": str(len(data) - begin)}
        if begin:
            status = 206 if begin < len(data) else 416
            told["Content-Range"] = (
                f"bytes {begin}-{len(data) - 1}/{len(data)}" if status == 206 else f"bytes */{len(data)}"
            )
        handler.send_response(status)
        for name, value in (told | self.headers).items():
            if value:
                handler.send_header(name, value)
        handler.end_headers()
        rest = data[begin:]
        with suppress(ConnectionError):  # whoever asked refused the rest
            handler.wfile.write(rest[: self.cut.pop(0)] if self.cut else rest)


@contextmanager
def served(mirror: Mirror) -> Iterator[Mirror]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            mirror.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, running(server):
        mirror.url = f"http://127.0.0.1:{server.server_port}"
        yield mirror


@dataclass(frozen=True)
class Signer:
    """A key of ours. public: its public half, as winhost reads it."""

    tsk: pysequoia.Tsk
    public: bytes
    fingerprint: str

    def sign(self, data: bytes) -> bytes:
        return pysequoia.sign(self.tsk.signer(), data, mode=pysequoia.SignatureMode.DETACHED, armor=False)


def signer(name: str) -> Signer:
    tsk = pysequoia.Tsk.generate(name)
    cert = tsk.extract_certificate()
    return Signer(tsk, bytes(cert), cert.fingerprint.upper())


def signed_release(by: Signer, image: bytes, folder: str = "/noble/release-20260814/") -> dict[str, bytes]:
    """What a mirror has of a release, by path."""
    name = "ubuntu-24.04-server-cloudimg-amd64.img"
    sums = f"{sha256(image).hexdigest()} *{name}\n".encode()
    listing = b'<a href="release-20260103/">old</a> <a href="release-20260814/">new</a> <a href="release/">moves</a>'
    return {
        folder + name: image,
        f"{folder}SHA256SUMS": sums,
        f"{folder}SHA256SUMS.gpg": by.sign(sums),
        f"{folder.rpartition('release-')[0]}": listing,
    }
