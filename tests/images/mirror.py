"""A mirror on loopback that can be told to fail, and keys to sign what lies there."""

import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


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

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        mirror.url = f"http://127.0.0.1:{server.server_port}"
        yield mirror
        server.shutdown()


@dataclass(frozen=True)
class Signer:
    """A key of ours. keyring: its public half, as gpgv reads it."""

    home: Path
    fingerprint: str
    keyring: Path

    def sign(self, data: bytes) -> bytes:
        return gpg(self.home, "--local-user", self.fingerprint, "--detach-sign", data=data)


def gpg(home: Path, *words: str, data: bytes = b"") -> bytes:
    command = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""]
    done = subprocess.run([*command, *words], input=data, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@contextmanager
def signers(*names: str) -> Iterator[list[Signer]]:
    home = Path(tempfile.mkdtemp(prefix="gpg"))  # short: gpg-agent has a socket there
    try:
        yield [_signer(home, name) for name in names]
    finally:
        subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], capture_output=True, timeout=60)
        shutil.rmtree(home, ignore_errors=True)


def _signer(home: Path, name: str) -> Signer:
    gpg(home, "--quick-generate-key", name, "ed25519", "sign", "never")
    listed = gpg(home, "--with-colons", "--list-keys", f"={name}").decode().splitlines()
    fingerprint = next(line.split(":")[9] for line in listed if line.startswith("fpr:"))
    keyring = home / f"{name}.keys"
    keyring.write_bytes(gpg(home, "--export", fingerprint))
    return Signer(home, fingerprint, keyring)
