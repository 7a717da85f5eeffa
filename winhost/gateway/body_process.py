"""Read the body of a request: check its size and depth, parse it, and write it again for the engine of its model.

Small bodies are parsed in the gateway's event loop. Large ones are parsed in another process, because parsing holds the
interpreter and would stop all streams. That process is started for the first large body, parses one at a time, and ends
when there was none for a while. If it runs out of memory, the gateway goes on.
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

from .continuation import Continuation, find_obstacle, prepare_continuable
from .fair_queue import FairLock, FairQueue, QueuedRequest, QueueTimeout
from .gateway_settings import GatewaySettings, Limits
from .request_rules import CHAT, COMPLETION, ErrorAnswer, check
from .routes import encode_for_engine, parse_body

_LOG = logging.getLogger("gateway")
# Parsing a small body takes a few milliseconds, less than sending it to the process. The event loop parses at most
# SMALL_BYTES of them in one turn, so that many of them do not stop streams. Tiny ones are not counted.
SMALL_BYTES, _TINY_BYTES = 32_768, 4_096
_PART_BYTES = 131_072
_IDLE_S = 60
_LENGTHS = struct.Struct("!IQ")  # the lengths of the header and of the body
_WITHHELD_VARIABLES = ("CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET")
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NON_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))


@dataclass(frozen=True)
class EngineBody:
    """A body for an engine. model: its name for clients; parts: of the body; adds_usage: the stream will end with a
    usage event that its client did not request; continuation: how to ask a second engine for the rest of the answer.
    """

    model: str
    parts: "list[bytes]"
    adds_usage: bool = False
    continuation: "Continuation | None" = None


def prepare_for_engine(body: bytearray, route: str, settings: GatewaySettings) -> EngineBody:
    """Check a body and write it for its engine, which is asked to report the usage of a stream. Raises ErrorAnswer."""
    check_shape(body, settings.limits)
    request = parse_body(body)
    model = settings.models.get(request["model"])
    if model is None:
        message = f"There is no such model here. There are: {', '.join(settings.models)}."
        raise ErrorAnswer(404, "model_not_found", message, "model")
    check(request, route, model.body)
    continuation = None
    if model.standby:
        obstacle = find_obstacle(request, route)
        if not obstacle:
            encoded, continuation = prepare_continuable(request, route, model.served_as)
            return EngineBody(model.name, [encoded], continuation=continuation)
        continuation = Continuation(obstacle)
    options = request.get("stream_options") or {}
    can_report = route in (CHAT, COMPLETION) and request.get("stream") is True and isinstance(options, dict)
    adds_usage = can_report and options.get("include_usage") is not True
    if adds_usage:
        request["stream_options"] = {**options, "include_usage": True}
    return EngineBody(model.name, [encode_for_engine(request, model.served_as)], adds_usage, continuation)


def check_shape(body: bytearray, limits: Limits) -> None:
    """Check the number of elements and the depth without a parser, whose values take far more memory than the text.
    Raises ErrorAnswer.
    """
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
    nested = outside_of_strings.translate(_BRACKETS, _NON_BRACKETS)
    for _ in range(limits.depth):  # remove the innermost brackets each time
        nested = nested.replace(b"[]", b"")
        if not nested:
            return
    raise ErrorAnswer(413, "too-deep", f"The body is nested deeper than {limits.depth} levels, or no JSON.")


@dataclass(eq=False)
class _SmallBody(QueuedRequest):
    size: int


class BodyProcess:
    """The gateway's side of the process. pid: its process id; None while it does not run."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._small_bodies: FairQueue[_SmallBody] = FairQueue(self._try_parse_now)
        self._parsed_in_round = 0  # bytes
        self._process_lock = FairLock()
        self._channel: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._ending: set[asyncio.Future[int]] = set()
        self._idle: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> "int | None":
        return self._process.pid if self._process else None

    async def read(self, body: "list[bytes]", route: str, key: str, deadline: float) -> EngineBody:
        """Read a body as `prepare_for_engine` does, and empty the list. deadline: a time of the event loop. Raises
        ErrorAnswer, QueueTimeout.
        """
        size = sum(map(len, body))
        if size > SMALL_BYTES:
            return await self._read_in_process(body, route, key, deadline)
        if size > _TINY_BYTES:
            await self._small_bodies.wait(_SmallBody(key, size), deadline)
        return prepare_for_engine(bytearray().join(body), route, self._settings)

    def _try_parse_now(self, body: _SmallBody) -> "bool | None":
        def start_next_round() -> None:
            self._parsed_in_round = 0
            self._small_bodies.admit_waiting()

        if not self._parsed_in_round:
            asyncio.get_running_loop().call_soon(start_next_round)
        elif self._parsed_in_round + body.size > SMALL_BYTES:
            return None
        self._parsed_in_round += body.size
        return True

    async def _read_in_process(self, body: "list[bytes]", route: str, key: str, deadline: float) -> EngineBody:
        loop = asyncio.get_running_loop()
        await self._process_lock.acquire(key, deadline)
        if self._idle:
            self._idle.cancel()
        try:
            timeout = max(0.01, deadline - loop.time())
            header, parts = await asyncio.wait_for(self._call(body, {"route": route}), timeout)
        except asyncio.TimeoutError:
            raise QueueTimeout from None
        finally:
            self._idle = loop.call_later(_IDLE_S, self.end)
            self._process_lock.release()
        if "model" in header:
            continuation = header["continuation"]
            return EngineBody(header["model"], parts, header["usage"], continuation and Continuation(**continuation))
        raise ErrorAnswer(**header)

    async def _call(self, body: "list[bytes]", header: "dict[str, Any]") -> "tuple[dict[str, Any], list[bytes]]":
        loop = asyncio.get_running_loop()
        try:
            channel = self._channel or await self._start()
            await loop.sock_sendall(channel, _pack(header, sum(map(len, body))))
            body.reverse()
            while body:
                await loop.sock_sendall(channel, body.pop())
            length, size = _LENGTHS.unpack(b"".join(await _receive_parts(channel, _LENGTHS.size)))
            return json.loads(b"".join(await _receive_parts(channel, length))), await _receive_parts(channel, size)
        except OSError as error:
            _LOG.error("the process that reads large bodies ended, or did not start: %s", type(error).__name__)
            self.end()
            message = "The body could not be read: the process that reads large ones ended."
            raise ErrorAnswer(503, "body-not-read", message, Retry_After="5") from None
        except BaseException:  # the process has a request, or a part of one, whose answer nobody reads
            self.end()
            raise

    async def _start(self) -> socket.socket:
        self._channel, child_end = socket.socketpair()
        self._channel.setblocking(False)
        with child_end:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-s", "-E", "-B", "-m", __name__, str(child_end.fileno())),
                pass_fds=(child_end.fileno(),),
                cwd=Path(__file__).parents[__name__.count(".")],
                env={name: value for name, value in os.environ.items() if name not in _WITHHELD_VARIABLES},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a traceback may contain a part of a body
            )
        settings = pickle.dumps(self._settings)
        await asyncio.get_running_loop().sock_sendall(self._channel, _LENGTHS.pack(0, len(settings)) + settings)
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


def _pack(header: "dict[str, Any]", size: int) -> bytes:
    text = json.dumps(header).encode("ascii")
    return _LENGTHS.pack(len(text), size) + text


async def _receive_parts(channel: socket.socket, size: int) -> "list[bytes]":
    """Receive in parts, because allocating and copying megabytes at once would stop all streams."""
    parts = []
    while size:
        part = await asyncio.get_running_loop().sock_recv(channel, min(size, _PART_BYTES))
        if not part:
            raise ConnectionResetError
        parts.append(part)
        size -= len(part)
    return parts


# ---- in the process


def serve(channel: socket.socket) -> None:
    """Read bodies until the gateway closes the channel."""

    def receive(size: int) -> bytearray:
        result = bytearray(size)
        unread = memoryview(result)
        while unread:
            count = channel.recv_into(unread)
            if not count:
                sys.exit(0)
            unread = unread[count:]
        return result

    _, size = _LENGTHS.unpack(receive(_LENGTHS.size))
    settings: GatewaySettings = pickle.loads(receive(size))  # noqa: S301 - of the gateway that started it
    while True:
        length, size = _LENGTHS.unpack(receive(_LENGTHS.size))
        header = json.loads(receive(length))
        result = b""
        try:
            made = prepare_for_engine(receive(size), header["route"], settings)
            continuation = made.continuation and asdict(made.continuation)
            answer: dict[str, Any] = {"model": made.model, "usage": made.adds_usage, "continuation": continuation}
            result = made.parts[0]
        except ErrorAnswer as error:
            answer = {"status": error.status, "code": error.code, "message": error.message, "param": error.param}
        except MemoryError:
            answer = {"status": 413, "code": "too-large", "message": "There is not enough memory to read the body."}
        channel.sendall(_pack(answer, len(result)))
        channel.sendall(result)


if __name__ == "__main__":
    # Streams get the processor first, and this process dies first if memory runs out.
    with suppress(OSError):
        os.nice(10)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    with socket.socket(fileno=int(sys.argv[1])) as gateway:
        serve(gateway)
