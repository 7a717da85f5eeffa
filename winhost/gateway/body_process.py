"""Read the body of a request: check its size and depth, parse it, and write it again for the engine of its model.

Small bodies are read here. Large ones are read in another process: parsing holds the interpreter, and would stop all
streams. The process is started for the first large body, reads one at a time, and ends when there was none for a while.
If a body makes it run out of memory, it dies alone.
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
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .continuing import Again, why_not, with_again
from .fair_line import FairLine, OneAtATime, WaitedTooLong, Waiting
from .gateway_settings import GatewaySettings, Limits
from .published import for_engine, understood
from .request_rules import CHAT, COMPLETION, ErrorAnswer, check

_LOG = logging.getLogger("gateway")
# Small bodies take a few milliseconds to parse, less than handing them over would take. The event loop parses at most
# that many bytes of them in one of its rounds, so that a crowd of them does not stop streams; tiny ones do not count.
SMALL_BYTES, _TINY_BYTES = 32_768, 4_096
_PART_BYTES = 131_072
_IDLE_S = 60
_HEAD = struct.Struct("!IQ")  # the lengths of the words and of the body
_NOT_ITS = ("CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET")
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))


@dataclass(frozen=True)
class ForEngine:
    """A body for an engine. model: its name for clients; parts: of the body; adds_usage: the stream will end with an
    event that its client did not ask for; again: how to ask a second engine for the rest of the answer.
    """

    model: str
    parts: "list[bytes]"
    adds_usage: bool = False
    again: "Again | None" = None


def written_for_engine(body: bytearray, route: str, settings: GatewaySettings) -> ForEngine:
    """Check a body and write it for its engine, which is asked to report the usage of a stream. Raises ErrorAnswer."""
    check_shape(body, settings.limits)
    found = understood(body)
    model = settings.models.get(found["model"])
    if model is None:
        message = f"There is no such model here. There are: {', '.join(settings.models)}."
        raise ErrorAnswer(404, "model_not_found", message, "model")
    check(found, route, model.body)
    again = None
    if model.standby:
        why = why_not(found, route)
        if not why:
            whole, again = with_again(found, route, model.served_as)
            return ForEngine(model.name, [whole], again=again)
        again = Again(why)
    options = found.get("stream_options") or {}
    can_report = route in (CHAT, COMPLETION) and found.get("stream") is True and isinstance(options, dict)
    adds = can_report and options.get("include_usage") is not True
    if adds:
        found["stream_options"] = {**options, "include_usage": True}
    return ForEngine(model.name, [for_engine(found, model.served_as)], adds, again)


def check_shape(body: bytearray, limits: Limits) -> None:
    """Count elements and depth without a parser, whose values take far more memory than text. Raises ErrorAnswer."""
    opened = body.count(b"[") + body.count(b"{")
    if opened <= limits.depth and opened + body.count(b",") <= limits.elements:
        return
    too_many = ErrorAnswer(413, "too-many-elements", f"The body has more than {limits.elements} elements.")
    plain = bytes(body).replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * limits.elements + 4:  # a name and a text for each element
        raise too_many
    outside_of_strings = b"".join(plain.split(b'"')[::2])
    if sum(map(outside_of_strings.count, (b",", b"[", b"{"))) > limits.elements:
        raise too_many
    nested = outside_of_strings.translate(_BRACKETS, _NO_BRACKETS)
    for _ in range(limits.depth):  # each time the innermost
        nested = nested.replace(b"[]", b"")
        if not nested:
            return
    raise ErrorAnswer(413, "too-deep", f"The body is nested deeper than {limits.depth} levels, or no JSON.")


@dataclass(eq=False)
class _Small(Waiting):
    size: int


class BodyProcess:
    """The gateway's side of the process. pid: its process id; None while it does not run."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._here: FairLine[_Small] = FairLine(self._begin_here)
        self._in_this_round = 0  # bytes
        self._elsewhere = OneAtATime()
        self._channel: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._ending: set[asyncio.Future[int]] = set()
        self._idle: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> "int | None":
        return self._process.pid if self._process else None

    async def read(self, body: "list[bytes]", route: str, key: str, until: float) -> ForEngine:
        """Read a body as `written_for_engine` does, and empty it. until: a time of the event loop. Raises ErrorAnswer,
        WaitedTooLong.
        """
        size = sum(map(len, body))
        if size > SMALL_BYTES:
            return await self._read_elsewhere(body, route, key, until)
        if size > _TINY_BYTES:
            await self._here.wait(_Small(key, size), until)
        return written_for_engine(bytearray().join(body), route, self._settings)

    def _begin_here(self, body: _Small) -> "bool | None":
        def begin_next_round() -> None:
            self._in_this_round = 0
            self._here.go_on()

        if not self._in_this_round:
            asyncio.get_running_loop().call_soon(begin_next_round)
        elif self._in_this_round + body.size > SMALL_BYTES:
            return None
        self._in_this_round += body.size
        return True

    async def _read_elsewhere(self, body: "list[bytes]", route: str, key: str, until: float) -> ForEngine:
        loop = asyncio.get_running_loop()
        await self._elsewhere.take(key, until)
        if self._idle:
            self._idle.cancel()
        try:
            left = max(0.01, until - loop.time())
            words, found = await asyncio.wait_for(self._ask(body, {"route": route}), left)
        except asyncio.TimeoutError:
            raise WaitedTooLong from None
        finally:
            self._idle = loop.call_later(_IDLE_S, self.end)
            self._elsewhere.give_back()
        if "model" in words:
            again = words["again"]
            return ForEngine(words["model"], found, words["usage"], again and Again(**again))
        raise ErrorAnswer(**words)

    async def _ask(self, body: "list[bytes]", words: "dict[str, Any]") -> "tuple[dict[str, Any], list[bytes]]":
        loop = asyncio.get_running_loop()
        try:
            channel = self._channel or await self._start()
            await loop.sock_sendall(channel, _message(words, sum(map(len, body))))
            body.reverse()
            while body:
                await loop.sock_sendall(channel, body.pop())
            length, size = _HEAD.unpack(b"".join(await _received(channel, _HEAD.size)))
            return json.loads(b"".join(await _received(channel, length))), await _received(channel, size)
        except OSError as error:
            _LOG.error("the process that reads large bodies ended, or did not start: %s", type(error).__name__)
            self.end()
            message = "The body could not be read: the process that reads large ones ended."
            raise ErrorAnswer(503, "body-not-read", message, Retry_After="5") from None
        except BaseException:  # the process has a request, or half of one, that nobody waits for
            self.end()
            raise

    async def _start(self) -> socket.socket:
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

    def take(size: int) -> bytearray:
        found = bytearray(size)
        left = memoryview(found)
        while left:
            count = channel.recv_into(left)
            if not count:
                sys.exit(0)
            left = left[count:]
        return found

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
        except ErrorAnswer as error:
            answer = {"status": error.status, "code": error.code, "message": error.message, "param": error.param}
        except MemoryError:
            answer = {"status": 413, "code": "too-large", "message": "There is not enough memory to read the body."}
        channel.sendall(_message(answer, len(found)))
        channel.sendall(found)


if __name__ == "__main__":
    # Streams get the processor first, and this process dies first if memory runs out.
    with suppress(OSError):
        os.nice(10)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    with socket.socket(fileno=int(sys.argv[1])) as gateway:
        serve(gateway)
