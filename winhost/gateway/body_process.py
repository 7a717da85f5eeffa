"""Parse large bodies in another process: parsing holds the interpreter, and would stop all streams.

The process is started for the first large body, reads one at a time, and ends when there was none for a while. If a
body makes it run out of memory, it dies alone.
"""

import asyncio
import json
import logging
import os
import pickle
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .continuing import Again
from .fair_line import FairLine, OneAtATime, WaitedTooLong, Waiting
from .gateway_settings import GatewaySettings
from .request_body import ForEngine, WrongBody, written_for_engine

_LOG = logging.getLogger("gateway")
# Small bodies take a few milliseconds to parse, less than handing them over would take. The event loop parses at most
# that many bytes of them in one of its rounds, so that a crowd of them does not stop streams; tiny ones do not count.
SMALL_BYTES, _TINY_BYTES = 32_768, 4_096
_PART_BYTES = 131_072
_IDLE_S = 60
_HEAD = struct.Struct("!IQ")  # the lengths of the words and of the body
_NOT_ITS = ("CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET")


class NotRead(Exception):
    """The process that reads large bodies ended, or could not be started."""


@dataclass(eq=False)
class _Small(Waiting):
    size: int


class BodyProcess:
    """The gateway's side of the process."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._here: FairLine[_Small] = FairLine(self._may_be_read, self._is_read)
        self._in_this_round = 0  # bytes
        self._elsewhere = OneAtATime()
        self._channel: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._ending: set[asyncio.Future[int]] = set()
        self._idle: asyncio.TimerHandle | None = None

    async def read(self, body: "list[bytes]", route: str, key: str, until: float) -> ForEngine:
        """Read a body as `written_for_engine` does, and empty it. until: a time of the event loop. Raises WrongBody,
        NotRead, WaitedTooLong.
        """
        size = sum(map(len, body))
        if size > SMALL_BYTES:
            return await self._read_elsewhere(body, route, key, until)
        if size > _TINY_BYTES:
            await self._here.wait(_Small(key, size), until)
        return written_for_engine(bytearray().join(body), route, self._settings)

    def _may_be_read(self, body: "_Small") -> "bool | None":
        return not self._in_this_round or self._in_this_round + body.size <= SMALL_BYTES or None

    def _is_read(self, body: "_Small") -> None:
        if not self._in_this_round:
            asyncio.get_running_loop().call_soon(self._next_round)
        self._in_this_round += body.size

    def _next_round(self) -> None:
        self._in_this_round = 0
        self._here.go_on()

    async def _read_elsewhere(self, body: "list[bytes]", route: str, key: str, until: float) -> ForEngine:
        loop = asyncio.get_running_loop()
        await self._elsewhere.take(key, until)
        if self._idle:
            self._idle.cancel()
        try:
            left = max(0.01, until - loop.time())
            words, found = await asyncio.wait_for(self._asked(body, {"route": route}), left)
        except asyncio.TimeoutError:
            raise WaitedTooLong from None
        finally:
            self._idle = loop.call_later(_IDLE_S, self.end)
            self._elsewhere.give_back()
        if "model" in words:
            again = words["again"]
            return ForEngine(words["model"], found, words["usage"], again and Again(**again))
        raise WrongBody(**words)

    async def _asked(self, body: "list[bytes]", words: "dict[str, Any]") -> "tuple[dict[str, Any], list[bytes]]":
        loop = asyncio.get_running_loop()
        try:
            channel = await self._started()
            await loop.sock_sendall(channel, _message(words, sum(map(len, body))))
            body.reverse()
            while body:
                await loop.sock_sendall(channel, body.pop())
            length, size = _HEAD.unpack(b"".join(await _received(channel, _HEAD.size)))
            return json.loads(b"".join(await _received(channel, length))), await _received(channel, size)
        except OSError as error:
            _LOG.error("the process that reads large bodies ended, or did not start: %s", type(error).__name__)
            self.end()
            raise NotRead from None
        except BaseException:  # the process has a request, or half of one, that nobody waits for
            self.end()
            raise

    @property
    def pid(self) -> "int | None":
        """The process id; None while it does not run."""
        return self._process.pid if self._process else None

    async def _started(self) -> socket.socket:
        """Start the process if it does not run. Returns the channel to it."""
        if self._channel is None:
            self._channel, theirs = socket.socketpair()
            self._channel.setblocking(False)
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-s", "-E", "-B", "-m", __name__, str(theirs.fileno())),
                    pass_fds=(theirs.fileno(),),
                    cwd=Path(__file__).parents[__name__.count(".")],
                    env={name: value for name, value in os.environ.items() if name not in _NOT_ITS},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # a traceback may contain a part of a body
                )
            settings = pickle.dumps(self._settings)
            await asyncio.get_running_loop().sock_sendall(self._channel, _HEAD.pack(0, len(settings)) + settings)
        return self._channel

    def end(self) -> None:
        """End the process if it runs. The next large body starts another."""
        if self._channel:
            self._channel.close()
        if self._process and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
            reaped = asyncio.ensure_future(self._process.wait())
            self._ending.add(reaped)
            reaped.add_done_callback(self._ending.discard)
        self._channel = self._process = None

    async def close(self) -> None:
        """End the process and wait for its end."""
        self.end()
        if self._idle:
            self._idle.cancel()
        await asyncio.gather(*self._ending)


def _message(words: "dict[str, Any]", size: int) -> bytes:
    text = json.dumps(words).encode("ascii")
    return _HEAD.pack(len(text), size) + text


async def _received(channel: socket.socket, size: int) -> "list[bytes]":
    """Receive in parts: allocating and copying megabytes at once would stop all streams as well."""
    parts = []
    while size:
        part = await asyncio.get_running_loop().sock_recv(channel, min(size, _PART_BYTES))
        if not part:
            raise ConnectionResetError
        parts.append(part)
        size -= len(part)
    return parts


# ---- the process


def serve(channel: socket.socket) -> None:
    """Read bodies until the gateway ends, or has no more."""
    take = _taker(channel)
    _, size = _HEAD.unpack(take(_HEAD.size))
    settings: GatewaySettings = pickle.loads(take(size))  # noqa: S301 - of the gateway that started it
    while True:
        length, size = _HEAD.unpack(take(_HEAD.size))
        words = json.loads(take(length))
        found = b""
        try:
            made = written_for_engine(take(size), words["route"], settings)
            again = made.again and asdict(made.again)
            answer: dict[str, Any] = {"model": made.model, "usage": made.adds_usage, "again": again}
            found = made.parts[0]
        except WrongBody as error:
            answer = {"status": error.status, "code": error.code, "message": error.message, "param": error.param}
        except MemoryError:
            answer = {"status": 413, "code": "too-large", "message": "There is not enough memory to read the body."}
        channel.sendall(_message(answer, len(found)))
        channel.sendall(found)


def _taker(channel: socket.socket) -> Callable[[int], bytearray]:
    def take(size: int) -> bytearray:
        found = bytearray(size)
        left = memoryview(found)
        while left:
            count = channel.recv_into(left)
            if not count:
                sys.exit(0)
            left = left[count:]
        return found

    return take


def _is_the_first_to_go() -> None:
    """Give streams the processor first, and let this process die first if memory runs out."""
    with suppress(OSError):
        os.nice(10)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    _is_the_first_to_go()
    with socket.socket(fileno=int(sys.argv[1])) as gateway:
        serve(gateway)
