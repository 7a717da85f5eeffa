"""Whatever a host does to keep us, we leave at the deadline; nor is it listened to for ever."""

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.connect.conftest import Serve
from tests.connect.served import OVER_NETWORKS
from tests.connect.slow import Relay, flooding, listening
from tests.connect.sshd import NoSshd, Sshd
from tests.errors import raises
from tests.processes import PATIENCE_S
from winhost.cli.output import error_text
from winhost.connect import guard
from winhost.connect.guard import Guard, connect_socket
from winhost.connect.wire_errors import Failure, SessionDropped, TimedOut, Unreachable, WireError
from winhost.model.fleet import WireKind

DEADLINE = 1

both = pytest.mark.parametrize("kind", OVER_NETWORKS)


@contextmanager
def left_early(relay: Relay) -> Iterator[None]:
    """Whoever is kept by the relay leaves before it has sent everything, which takes a minute and more."""
    yield
    assert relay.still_drips


# ---- the whole way to a session and through a call, over a line that drips

# So many bytes come fast; then the rest is in the headers of the first answer, in the logon, in what opens a session.
PHASES = {
    "from the first byte": 0,
    "in the headers": 60,
    "in the second answer of the logon": 450,
    "while the session opens": 1200,
}


@pytest.mark.costly
@both
@pytest.mark.parametrize("fast", PHASES.values(), ids=PHASES.keys())
def test_a_host_that_drips_while_a_session_opens(serve: Serve, kind: WireKind, fast: int) -> None:
    served = serve()
    with (
        Relay(served.endpoint.port, fast) as relay,
        left_early(relay),
        pytest.raises(TimedOut, match="no answer after 1 s") as caught,
    ):
        served.open(kind=kind, port=relay.port, call_timeout=DEADLINE)
    assert "No request was sent" in error_text(caught.value)


@both
def test_a_host_that_drips_its_tls(serve: Serve, kind: WireKind) -> None:
    served = serve(tls=True)
    with Relay(served.endpoint.port, 0) as relay, left_early(relay), pytest.raises(TimedOut):
        served.open(kind=kind, port=relay.port, call_timeout=DEADLINE)


@both
def test_a_host_that_drips_tls_is_waited_for_no_longer_than_for_a_connection(serve: Serve, kind: WireKind) -> None:
    served = serve(tls=True)
    with Relay(served.endpoint.port, 0) as relay, left_early(relay), pytest.raises(WireError, match="timed out"):
        served.open(kind=kind, port=relay.port, connect_timeout=DEADLINE)


@pytest.mark.costly
@both
@pytest.mark.parametrize("tls", [False, True])
def test_a_host_that_drips_in_the_middle_of_a_call_and_at_the_end(serve: Serve, kind: WireKind, tls: bool) -> None:
    served = serve(tls=tls)
    with Relay(served.endpoint.port) as relay:
        agent = served.open(kind=kind, port=relay.port)
        agent.get("Boot", {})
        relay.drip()
        agent.call_timeout = DEADLINE
        with left_early(relay):
            named = f"gpu-03 at 127.0.0.1 port {relay.port} did not answer in time"
            with pytest.raises(TimedOut, match=named) as caught:
                agent.get("Boot", {})
            assert "may still be running there" in error_text(caught.value)
            agent.close()


@pytest.mark.costly
@both
def test_a_host_that_drips_only_the_good_bye_keeps_nobody(
    serve: Serve, kind: WireKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "_CLOSE_S", DEADLINE)
    served = serve()
    with Relay(served.endpoint.port) as relay:
        agent = served.open(kind=kind, port=relay.port)
        agent.get("Boot", {})
        agent.call_timeout = DEADLINE
        relay.drip()
        with left_early(relay):
            agent.close()


# ---- what never ends


ENDLESS = {
    "headers": (b"HTTP/1.1 200 OK\r\nX: ", b"y" * 65536),
    "a body": (b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n", b" " * 65536),
    "a body in chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 9999),
    "a body of a refusal": (b"HTTP/1.1 500 No\r\nContent-Length: 999999999\r\n\r\n", b" " * 65536),
    "signs of life": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 999),
}


@pytest.mark.costly
@both
@pytest.mark.parametrize(("begins", "piece"), ENDLESS.values(), ids=ENDLESS.keys())
def test_a_host_that_never_ends_is_left_after_a_megabyte(
    serve: Serve, kind: WireKind, begins: bytes, piece: bytes
) -> None:
    served = serve()
    with listening(flooding(begins, piece)) as port, pytest.raises(WireError) as caught:
        served.open(kind=kind, port=port, call_timeout=PATIENCE_S)
    assert caught.value.code in ("NoSession", "Redirected", "NoShell", "SessionDropped")


@both
def test_a_host_may_not_answer_a_call_without_end(
    serve: Serve, kind: WireKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "MAX_CALL_BYTES", 100_000)
    served = serve()
    with_much = '{"answers": [{"ok": true, "state": {"text": "' + "x" * 200_000 + '"}}]}'
    agent = served.open(kind=kind)
    served.host.says = lambda: [with_much]
    with pytest.raises(SessionDropped, match="it sent more than"):
        agent.get("Boot", {})
    agent.close()


def test_an_answer_in_an_encoding_that_nobody_asked_for_is_not_unpacked(serve: Serve) -> None:
    bomb = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\n123456789"
    for kind in OVER_NETWORKS:
        with listening(flooding(bomb, b" ")) as port, raises("NoSession", match=r"encoding .*gzip"):
            serve().open(kind=kind, port=port)


# ---- connecting


def test_a_name_server_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def look_up(*_: object, **__: object) -> None:
        over.wait(PATIENCE_S)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(Unreachable, match="the name server did not answer") as caught:
        connect_socket(limited(), "gpu-01.example", 5986, 0.2)
    over.set()
    assert caught.value.failure is Failure.NAME


def test_an_address_that_swallows_everything_leaves_the_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, 5986)) for host in ("silent", "refuses", "answers")]
    tried: list[tuple[str, float]] = []

    def connect(self: socket.socket, where: tuple[str, int]) -> None:
        tried.append((where[0], self.gettimeout() or 0))
        if where[0] != "answers":
            raise TimeoutError("timed out") if where[0] == "silent" else ConnectionRefusedError(111, "refused")

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket.socket, "setsockopt", lambda *_: None)
    connect_socket(limited(), "gpu-01", 5986, 9).close()
    assert [host for host, _ in tried] == ["silent", "refuses", "answers"]
    assert 0 < tried[0][1] <= 3


class WithoutIpv6(socket.socket):
    """A socket of a system that has no IPv6."""

    def __init__(self, family: int, *others: int) -> None:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        super().__init__(family, *others)


def test_a_system_without_ipv6_takes_the_other_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(flooding(b"", b"")) as port:
        found = [
            (socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("::1", port, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)),
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        connect_socket(limited(), "gpu-01", port, 9, WithoutIpv6).close()


def limited() -> Guard:
    limits = Guard("gpu-01", "gpu-01.example port 5986")
    limits.begin(60)
    return limits


# ---- SSH


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    try:
        running = Sshd(tmp_path_factory.mktemp("sshd"))
    except NoSshd as why:
        pytest.skip(str(why))
    yield running
    running.close()


# So many bytes come fast; the rest is the banner, the exchange of keys, the logon, the channel.
SSH_PHASES = {"banner": 0, "kex": 60, "keys": 1200, "logon": 1900}


@pytest.mark.parametrize("fast", SSH_PHASES.values(), ids=SSH_PHASES.keys())
def test_an_sshd_that_drips_while_a_session_opens(sshd: Sshd, fast: int) -> None:
    with Relay(sshd.port, fast) as relay, left_early(relay), pytest.raises(TimedOut, match="no answer after 1 s"):
        sshd.wire(port=relay.port, call_timeout=DEADLINE)


def test_an_sshd_that_says_nothing_but_comments(sshd: Sshd) -> None:
    def says(connection: socket.socket) -> None:
        while True:
            connection.sendall(b"welcome\r\n")
            time.sleep(0.05)

    with listening(says) as port, pytest.raises(WireError):
        sshd.wire(port=port, call_timeout=DEADLINE)


CALLS: dict[str, Callable[[Any], Any]] = {
    "in what it answers": lambda wire: wire.invoke('["echo", 1]', DEADLINE),
    "in what it takes": lambda wire: wire.invoke('["echo", "' + "x" * 9_000_000 + '"]', DEADLINE),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_an_sshd_that_drips_in_the_middle_of_a_call(sshd: Sshd, call: Callable[[Any], Any]) -> None:
    with Relay(sshd.port) as relay:
        wire = sshd.wire(port=relay.port)
        wire.invoke('["echo", 0]', PATIENCE_S)
        relay.drip()
        with left_early(relay):
            with pytest.raises(TimedOut, match="no answer after 1 s"):
                call(wire)
            wire.close()


def test_a_program_that_talks_without_end_is_left(sshd: Sshd) -> None:
    program = "import sys\nwhile True:\n    sys.stdout.write('x' * 65536)\n"
    wire = sshd.wire(program)
    with pytest.raises(SessionDropped, match="it sent more than 8 MiB in one answer"):
        wire.invoke("[]", PATIENCE_S)


def test_a_program_that_beats_without_end_is_left(sshd: Sshd, tmp_path: Path) -> None:
    wire = sshd.wire("import time\nwhile True:\n    print(flush=True)\n    time.sleep(0.05)\n")
    with pytest.raises(TimedOut, match="no answer after 1 s"):
        wire.invoke("[]", DEADLINE)
