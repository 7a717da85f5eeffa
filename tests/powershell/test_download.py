"""A download in slices, in a real PowerShell from a real HTTPS server: one that goes on, and others that do not."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext

import pytest

from tests.powershell.twins import Scripts, scripts
from tests.processes import PATIENCE_S
from winhost.lab.wire.served_host import PipelineError
from winhost.lab.wire.wsman_endpoint import make_certificate
from winhost.resources.windows.windows_scripts import agent_text

CONTENT = bytes(range(256)) * 8_000
HALF = len(CONTENT) // 2
LONG = int(PATIENCE_S)  # seconds of a slice that ends by itself


@dataclass
class Served:
    """The behaviour of the server. first: bytes of an answer after which it breaks off, or hangs until `over`."""

    ranges: bool = True
    length: bool = True
    etag: str = '"a"'
    first: int | None = None
    hangs: bool = False
    silent: bool = False
    status: int = 200
    location: str = ""
    asked: list[str | None] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    physics = Served()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of the library
        pass

    def do_GET(self) -> None:
        physics = self.server.physics
        wanted = self.headers.get("Range")
        physics.asked.append(wanted)
        if physics.silent:
            physics.over.wait(PATIENCE_S)
            return None
        at = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and physics.ranges else 0
        if physics.status != 200:
            self.send_response(physics.status)
            self.send_header("Location", physics.location)
            self.send_header("Content-Length", "0")
            return self.end_headers()
        self.send_response(416 if at >= len(CONTENT) else 206 if at else 200)
        if at:
            last = f"{at}-{len(CONTENT) - 1}" if at < len(CONTENT) else "*"
            self.send_header("Content-Range", f"bytes {last}/{len(CONTENT)}")
        if physics.length:
            self.send_header("Content-Length", str(len(CONTENT[at:])))
        self.send_header("ETag", physics.etag)
        self.end_headers()
        self.wfile.write(CONTENT[at:] if physics.first is None else CONTENT[at : at + physics.first])
        self.wfile.flush()
        if physics.hangs:
            physics.over.wait(PATIENCE_S)
        return None


@dataclass
class Downloads:
    engine: Scripts
    server: Server
    path: Path

    def slice(self, version: str, seconds: int = LONG) -> dict[str, str]:
        """Return its output. Raises PipelineError."""
        address = f"https://localhost:{self.server.server_address[1]}/x"
        told = self.engine.run(
            f"$t = Receive-WinhostSlice '{address}' '{self.path}' '{version}' {seconds}; "
            "foreach ($n in 'resumes', 'whole', 'version', 'why') { \"$n=$($t.$n)\" }"
        )
        return dict(line.split("=", 1) for line in told)

    @property
    def there(self) -> bytes:
        return self.path.read_bytes()

    @property
    def asked(self) -> list[str | None]:
        return self.server.physics.asked


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Scripts, Server]]:
    folder, made = tmp_path_factory.mktemp("tls"), make_certificate()
    (folder / "cert.pem").write_bytes(made.certificate)
    (folder / "key.pem").write_bytes(made.key)
    context = SSLContext(PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    with Server(("127.0.0.1", 0), Handler) as server, pytest.MonkeyPatch.context() as patch:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        patch.setenv("SSL_CERT_FILE", str(folder / "cert.pem"))
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
            patch.delenv(name, raising=False)
        with scripts() as engine:
            engine.run(agent_text())
            yield engine, server
        server.shutdown()


@pytest.fixture
def here(serving: tuple[Scripts, Server], tmp_path: Path) -> Iterator[Downloads]:
    engine, server = serving
    server.physics = Served()
    yield Downloads(engine, server, tmp_path / "part")
    server.physics.over.set()


WHOLE = str(len(CONTENT))
VERSION = f'{WHOLE} "a"'


def test_all_of_it_comes_in_one_slice(here: Downloads) -> None:
    assert here.slice("") == {"resumes": "True", "whole": WHOLE, "version": VERSION, "why": ""}
    assert here.there == CONTENT
    assert here.asked == [None]


def test_what_breaks_off_is_continued_where_it_ended(here: Downloads) -> None:
    here.server.physics.first = HALF
    told = here.slice("")
    assert (told["version"], told["resumes"]) == (VERSION, "True")
    assert here.there == CONTENT[:HALF]
    here.server.physics.first = None
    assert here.slice(VERSION)["why"] == ""
    assert here.there == CONTENT
    assert here.asked == [None, f"bytes={HALF}-"]


def test_a_server_that_hangs_ends_with_its_slice(here: Downloads) -> None:
    here.server.physics.first, here.server.physics.hangs = HALF, True
    told = here.slice("", seconds=3)
    assert told["why"] == "its time is over"
    assert here.there == CONTENT[:HALF]


def test_a_server_that_never_answers_ends_with_its_slice(here: Downloads) -> None:
    here.server.physics.silent = True
    with pytest.raises(PipelineError, match=r"timed out|timeout|canceled"):
        here.slice("", seconds=3)


def test_another_version_begins_again(here: Downloads) -> None:
    here.path.write_bytes(b"older")
    assert here.slice(VERSION.replace("a", "b"))["version"] == VERSION
    assert here.there == CONTENT
    assert here.asked == ["bytes=5-", None]


def test_a_file_that_got_shorter_begins_again(here: Downloads) -> None:
    here.path.write_bytes(CONTENT + b"and more")
    assert here.slice('99999999 "a"')["version"] == VERSION
    assert here.there == CONTENT


def test_a_server_that_never_sends_the_rest_is_told(here: Downloads) -> None:
    here.server.physics.ranges = False
    here.path.write_bytes(CONTENT[:HALF])
    assert here.slice(VERSION)["resumes"] == "False"
    assert here.there == CONTENT[:HALF]


def test_what_tells_no_length_has_one_at_its_end(here: Downloads) -> None:
    here.server.physics.length = False
    told = here.slice("")
    assert (told["whole"], told["version"]) == (WHOLE, ' "a"')
    assert here.there == CONTENT


@pytest.mark.parametrize(("status", "said"), [(404, "404"), (503, "503"), (302, "302|redirects from https to http")])
def test_what_cannot_be_fetched_says_why_and_keeps_what_is_there(here: Downloads, status: int, said: str) -> None:
    with Server(("127.0.0.1", 0), Handler) as plain:
        threading.Thread(target=plain.serve_forever, daemon=True).start()
        here.server.physics.status = status
        here.server.physics.location = f"http://localhost:{plain.server_address[1]}/x"
        here.path.write_bytes(CONTENT[:HALF])
        with pytest.raises(PipelineError, match=said):
            here.slice(VERSION)
        plain.shutdown()
    assert here.there == CONTENT[:HALF]
