"""Requests of an attacker to a gateway, with and without a key, and a measurement of how long they hold up its event
loop.
"""

import mmap
import socket
import ssl
import struct
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.processes import PATIENCE_S

Connect = Callable[[], socket.socket]
AT_ONCE = 200  # connections: an address that has sent no key may have 256
_CHUNKS = 40_000
_LARGE = 16 << 20


def _send(connect: Connect, *parts: bytes) -> bytes:
    """Send these parts on one connection, and return the beginning of the answer."""
    with suppress(OSError), connect() as to:
        for part in parts:
            to.sendall(part)
        return to.recv(1_000)
    return b""


def _send_together(connect: Connect, what: bytes) -> None:
    """Send this on many connections at the same moment, and close each after its answer."""
    with ExitStack() as opened, suppress(OSError):
        every = [opened.enter_context(connect()) for _ in range(AT_ONCE)]
        for each in every:
            each.sendall(what)
        for each in every:
            with suppress(OSError):
                each.recv(1_000)


def tiny_chunks(connect: Connect, plain: Connect, head: bytes, model: str) -> None:
    """Send four bodies in chunks of one byte, without a key."""
    start = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(_send, connect, start, b"1\r\na\r\n" * _CHUNKS)


def large_bodies(connect: Connect, plain: Connect, head: bytes, model: str) -> None:
    """Send four bodies of 16 MiB, with a key."""
    body = b'{"model":"%b","prompt":"%b"}' % (model.encode(), b"x" * (_LARGE - 300))
    request = head + b"Content-Length: %d\r\n\r\n" % len(body)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(_send, connect, request, body)


def silent_connections(connect: Connect, plain: Connect, head: bytes, model: str) -> None:
    """Open more connections than allowed, and send nothing."""
    with ExitStack() as opened:
        for _ in range(1_030):
            with suppress(OSError):
                opened.enter_context(plain())


def requests_without_a_key(connect: Connect, plain: Connect, head: bytes, model: str) -> None:
    """Send many requests at the same moment."""
    _send_together(connect, b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")


def handshakes(connect: Connect, plain: Connect, head: bytes, model: str) -> None:
    """Begin many handshakes at the same moment and finish none. The gateway computes its part of each."""
    out = ssl.MemoryBIO()
    context = ssl.create_default_context()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="gateway.test").do_handshake()
    _send_together(plain, out.read())


Attack = Callable[[Connect, Connect, bytes, str], None]
# Each needs how to connect, how to connect without a handshake, the head of a request with a key, and a model.
ATTACKS: Mapping[str, Attack] = {
    "chunks of one byte": tiny_chunks,
    "large bodies": large_bodies,
    "silent connections": silent_connections,
    "requests without a key": requests_without_a_key,
    "handshakes": handshakes,
}


def address_for(name: str) -> str:
    """Return an address for this attack. No key was sent from it before."""
    return f"127.0.0.{2 + list(ATTACKS).index(name)}"


def connect_from(address: str, port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S, (address, 0))


# ---- the gateway's event loop

_NOTED = struct.Struct("=dd")
# It runs in the gateway's place. A step is what the loop does between two looks at its sockets: a token waits for two
# of them at most. unit: what a fixed piece of work takes on this machine, so that a slow one may have longer steps.
STEPPED = """
import json, mmap, struct, sys, time
from asyncio import base_events
from pathlib import Path
now, noted = time.thread_time, struct.Struct("=dd")
text = json.dumps([{"a": number, "b": [str(number)] * 3} for number in range(3_400)])
def work():
    began = now()
    json.loads(text)
    return now() - began
unit = min(work() for _ in range(20))
Path("steps").write_bytes(noted.pack(0.0, unit))
file = open("steps", "r+b")
steps = mmap.mmap(file.fileno(), noted.size)
once = base_events.BaseEventLoop._run_once
def one_step(loop):
    began = now()
    once(loop)
    took = now() - began
    if took > noted.unpack_from(steps)[0]:
        noted.pack_into(steps, 0, took, unit)
base_events.BaseEventLoop._run_once = one_step
from gateway.program import main
sys.exit(main(sys.argv[1:]))
"""


class Steps:
    """The longest step of the event loop, in units, of a gateway that runs as STEPPED in this folder."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "steps"

    @property
    def longest(self) -> float:
        longest, unit = _NOTED.unpack(self._file.read_bytes())
        return float(longest / unit)

    def forget(self) -> None:
        with self._file.open("r+b") as file, mmap.mmap(file.fileno(), _NOTED.size) as noted:
            noted[: _NOTED.size // 2] = struct.pack("=d", 0.0)


def _repeat(name: str, port: str, authority: str, key: str, model: str) -> None:
    """Repeat an attack until the process is killed."""
    context = ssl.create_default_context(cafile=authority)

    def plain() -> socket.socket:
        return connect_from(address_for(name), int(port))

    def connect() -> socket.socket:
        return context.wrap_socket(plain(), server_hostname="127.0.0.1")

    lines = [
        "POST /v1/completions HTTP/1.1",
        "Host: a",
        f"Authorization: Bearer {key}",
        "Content-Type: application/json",
    ]
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    while True:
        ATTACKS[name](connect, plain, "".join(f"{line}\r\n" for line in lines).encode(), model)


if __name__ == "__main__":
    _repeat(*sys.argv[1:])
