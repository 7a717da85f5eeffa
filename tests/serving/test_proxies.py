"""The gateway behind HAProxy, nginx and Caddy, as `winhost render proxy` configures them: the real programs of Debian.

The proxy reaches the gateway from 127.0.0.1, and clients the proxy from 127.0.0.9.
"""

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.gateway.running import MODEL, Gateway, gateway, parse_answer, read_to_end, settings_for
from tests.gateway.test_gateway_start import certificate
from tests.gateway.test_strict_http import CASES, sent
from tests.processes import PATIENCE_S
from tests.rows import each_row
from winhost.gateway.gateway_settings import Limits
from winhost.model.workload import Workload
from winhost.serving.proxy_config import ProxyRequest, proxy_config

pytestmark = pytest.mark.real

CLIENT = "127.0.0.9"
BODY_BYTES = 1_000_000
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
# Of each program: how it says for whom it asks, and whether the gateway is reached over TLS.
SETUPS = [
    ("haproxy", True, True),
    ("haproxy", False, False),
    *((program, False, tls) for program in ("nginx", "caddy") for tls in (True, False)),
]


class Behind:
    """A gateway and the proxy before it."""

    def __init__(self, program: str, folder: Path, door: Gateway, request: ProxyRequest) -> None:
        self.program = program
        self.folder, self.door, self.engine, self.request = folder, door, door.engine, request
        self.port = request.listen[1]
        self._context = ssl.create_default_context(cafile=str(folder / "cert.pem"))

    def connected(self, source: str = CLIENT) -> ssl.SSLSocket:
        to = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S, (source, 0))
        return self._context.wrap_socket(to, server_hostname="127.0.0.1")

    def raw(self, request: bytes, source: str = CLIENT) -> bytes:
        with self.connected(source) as to:
            with suppress(OSError):
                to.sendall(request)
            return rest(to)

    def complete(self, prompt: str) -> tuple[int, dict[str, str], bytes]:
        return parse_answer(self.raw(self.posted(prompt)))

    def posted(self, prompt: str, *, headers: dict[str, str] | None = None, **more: Any) -> bytes:
        body = {"model": MODEL, "prompt": prompt, **more}
        return self.door.request("/v1/completions", body, {**self.door.headers, **(headers or {})})


def rest(to: ssl.SSLSocket) -> bytes:
    """What comes until the end, which a proxy need not announce."""
    try:
        return read_to_end(to)
    except (ssl.SSLError, OSError):
        return b""


def until(what: Callable[[], object], process: "subprocess.Popen[bytes] | None" = None) -> None:
    end = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end
        assert process is None or process.poll() is None
        time.sleep(0.01)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return found


def command(program: str, folder: Path, text: str) -> list[str]:
    (folder / "config").write_text(text)
    if program == "haproxy":
        return ["haproxy", "-db", "-f", str(folder / "config")]
    if program == "caddy":
        return ["caddy", "run", "--config", str(folder / "config"), "--adapter", "caddyfile"]
    # What Debian's /etc/nginx/nginx.conf has around the files in conf.d, with files of our own.
    (folder / "nginx.conf").write_text(
        f"user www-data; worker_processes 1; pid {folder}/pid; error_log stderr;\n"
        "events { worker_connections 768; }\n"
        "http { sendfile on; tcp_nopush on; types_hash_max_size 2048; include /etc/nginx/mime.types;\n"
        "default_type application/octet-stream; access_log off; gzip on;\n"
        "ssl_protocols TLSv1 TLSv1.1 TLSv1.2 TLSv1.3; ssl_prefer_server_ciphers on;\n"
        f"include {folder}/config; }}\n"
    )
    return ["nginx", "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]


@contextmanager
def running(program: str, request: ProxyRequest, folder: Path) -> Iterator[Path]:
    """The proxy; what it writes."""
    environment = {"PATH": PATH, "HOME": str(folder)}
    words = command(program, folder, proxy_config(program, request))
    words[0] = shutil.which(words[0], path=PATH) or words[0]
    said = folder / "proxy.log"
    with said.open("wb") as log:
        process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until(lambda: listens(request.listen[1]), process)
        yield said
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def listens(port: int) -> bool:
    with socket.socket() as to:
        return to.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(
    scope="module",
    params=SETUPS,
    ids=lambda setup: "-".join([setup[0], "protocol" if setup[1] else "header", "tls" if setup[2] else "plain"]),
)
def behind(request: pytest.FixtureRequest) -> Iterator[Behind]:
    program, protocol, tls = request.param
    with TemporaryDirectory(prefix="door-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # Caddy and HAProxy read their files as root, before they become somebody else
        certificate(folder)
        whole = (folder / "cert.pem").read_text() + (folder / "key.pem").read_text()
        (folder / "both.pem").write_text(whole)
        inner, outer = free_ports(2)
        settings = settings_for(folder, limits={"body_bytes": BODY_BYTES, "connections": 64})
        settings |= {"listen": {"address": "127.0.0.1", "port": inner}, "trusted_proxies": ["127.0.0.1/32"]}
        settings |= {"tls": {"certificate": "cert.pem", "key": "key.pem"}} if tls else {}
        settings |= {"proxy_protocol": True} if protocol else {}
        asked = ProxyRequest(
            Workload((), trusted_proxies=("127.0.0.1/32",), proxy_protocol=protocol),
            ("127.0.0.1", inner),
            ("127.0.0.1", outer),
            certificate=str(folder / ("both.pem" if program == "haproxy" else "cert.pem")),
            key=None if program == "haproxy" else str(folder / "key.pem"),
            gateway_ca=str(folder / "cert.pem") if tls else None,
            gateway_name="gateway.test" if tls else None,
            limits=Limits(body_bytes=BODY_BYTES),
        )
        with gateway(folder, settings) as door, running(program, asked, folder) as said:
            yield Behind(program, folder, door, asked)
            assert not re.search(r"\[(warn|emerg|WARNING|ALERT)|panic", said.read_text())


def first_event(to: ssl.SSLSocket) -> bytes:
    came = b""
    while b"held/0" not in came:
        part = to.recv(65_536)
        assert part, came
        came += part
    return came


# ---- streams, and their end


def test_each_event_comes_before_the_engine_sends_the_next(behind: Behind) -> None:
    behind.engine.first_came.clear()
    with behind.connected() as to:
        to.sendall(behind.posted("held", stream=True))
        came = first_event(to)
        assert b"held/1" not in came
        behind.engine.first_came.set()
        came += rest(to)
    assert parse_answer(came)[2].endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("prompt", ["held", "hang"])
def test_the_end_of_a_client_reaches_the_engine(behind: Behind, prompt: str) -> None:
    """Before the engine sends another byte: it would send none."""
    engine = behind.engine
    engine.first_came.clear()
    gone, asked = len(engine.gone), len(engine.requests)
    try:
        with behind.connected() as to:
            to.sendall(behind.posted(prompt, stream=True))
            if prompt == "held":
                first_event(to)
            until(lambda: len(engine.requests) > asked)
            assert len(engine.gone) == gone
        until(lambda: len(engine.gone) > gone)
    finally:
        engine.first_came.set()


def test_what_an_engine_breaks_off_is_not_sent_again(behind: Behind) -> None:
    asked = len(behind.engine.requests)
    assert behind.complete("die at once")[0] == 502
    assert len(behind.engine.requests) == asked + 1
    with behind.connected() as to:
        to.sendall(behind.posted("die", stream=True))
        came = rest(to)
    assert b"engine-broke-off" in came
    if behind.program != "caddy":  # 2.6 ends it as if it were whole, after the error event
        assert not came.endswith(b"\r\n0\r\n\r\n")


# ---- who asks


def test_the_gateway_sees_the_address_of_the_client(behind: Behind) -> None:
    """Whatever the client writes itself."""
    spoofed = [{}, {"X-Forwarded-For": "192.0.2.66"}, {"X-Forwarded-For": "a, b", "Forwarded": "for=192.0.2.66"}]
    for number, headers in enumerate(spoofed, 10):
        asked = behind.posted("who", headers=headers)
        assert parse_answer(behind.raw(asked, f"127.0.0.{number}"))[0] == 200
    until(lambda: all(f"client=127.0.0.{number} key=alice" in behind.door.log for number in (10, 11, 12)))
    assert "192.0.2.66" not in behind.door.log
    assert "client=127.0.0.1 " not in behind.door.log


def test_a_key_is_handed_on_and_nothing_answers_without_one(behind: Behind) -> None:
    assert parse_answer(behind.raw(behind.door.request("/v1/models", headers={})))[0] == 401
    assert parse_answer(behind.raw(behind.door.request("/v1/models")))[0] == 200
    assert parse_answer(behind.raw(behind.door.request("/sleep", {"model": MODEL})))[0] == 404


# ---- what is sent


def body_of(size: int) -> bytes:
    frame = json.dumps({"model": MODEL, "prompt": ""}).encode()
    return frame[:-2] + b"x" * (size - len(frame)) + frame[-2:]


def test_bodies_have_the_size_that_the_gateway_takes(behind: Behind) -> None:
    """With a length, and in chunks, whose sum is seen only while they come."""
    chunked = {"Transfer-Encoding": "chunked", "Content-Type": "application/json"}
    head = behind.door.request("/v1/completions", headers={**behind.door.headers, **chunked}, method="POST")
    for size, statuses in ((BODY_BYTES, [200]), (BODY_BYTES + 1, [413, 502, None])):
        body, asked = body_of(size), len(behind.engine.requests)
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in (body[:70_000], body[70_000:], b""))
        for request in (behind.door.request("/v1/completions", body), head + chunks):
            answer = behind.raw(request)
            assert (parse_answer(answer)[0] if answer else None) in statuses
        assert len(behind.engine.requests) - asked == (2 if size == BODY_BYTES else 0)


def test_connections_to_the_gateway_are_kept(behind: Behind) -> None:
    def to_gateway() -> set[str]:
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        port = f":{behind.request.gateway[1]:04X}"
        return {line.split()[1] for line in lines if line.split()[2].endswith(port) and line.split()[3] == "01"}

    request = behind.posted("kept").replace(b"Connection: close\r\n", b"")

    def asked(to: ssl.SSLSocket) -> set[str]:
        to.sendall(request)
        came = b""
        while b'"choices"' not in came or not came.rstrip(b"\r\n0").endswith(b"}"):
            part = to.recv(65_536)
            assert part, came
            came += part
        return to_gateway()

    def kept() -> bool:
        """An idle one may be closed at any time, but not each of them."""
        with behind.connected() as to:
            first, second = asked(to), asked(to)
        return bool(second) and second <= first

    until(kept)


def test_no_request_hides_in_another(behind: Behind) -> None:
    """Whatever a proxy makes of it: an engine gets only whole requests, and not more than were sent."""

    @each_row("case", CASES, ids=lambda case: case["name"])
    def sent_through(case: dict[str, Any]) -> None:
        before = len(behind.engine.requests)
        text = sent(case)
        # Where the proxy keeps the connection, the last request ends it; where it waits for more, a look is enough.
        with behind.connected() as to, suppress(OSError):
            to.settimeout(0.9)
            to.sendall(text + b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            read_to_end(to)
        came = behind.engine.requests[before:]
        assert len(came) <= text.count(b" HTTP/1.")
        for method, path, body in came:
            assert (method, path) == ("POST", "/v1/completions")
            assert json.loads(body)["model"] == "tiny"

    sent_through()


# ---- what is refused


@contextmanager
def changed(behind: Behind, **changes: Any) -> Iterator[Behind]:
    """Another proxy before the same gateway."""
    with TemporaryDirectory(prefix="door-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        request = replace(behind.request, listen=("127.0.0.1", free_ports(1)[0]), **changes)
        with running(behind.program, request, folder):
            yield Behind(behind.program, behind.folder, behind.door, request)


def test_a_gateway_with_another_name_gets_no_request(behind: Behind) -> None:
    """Nor one without TLS, where its certificate is asked for."""
    asked = len(behind.engine.requests)
    with changed(behind, gateway_ca=str(behind.folder / "cert.pem"), gateway_name="other.test") as other:
        assert other.complete("secret")[0] in (502, 503)
    assert len(behind.engine.requests) == asked


# Where the proxy resets the connection before `ssl` has asked for its peer, `ssl` leaves its socket open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_only_networks_that_are_allowed_are_answered(behind: Behind) -> None:
    request = behind.posted("who")
    with changed(behind, allowed=("127.0.0.8/32", "2001:db8::/32")) as other:
        assert parse_answer(other.raw(request, "127.0.0.8"))[0] == 200
        with suppress(OSError):  # there is no handshake
            assert other.raw(request).split()[1:2] in ([], [b"403"])
