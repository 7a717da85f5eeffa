"""A gateway before two stand-ins of one model, in one event loop. Engines are killed and hang, and clients read
bytes. A stand-in sends vLLM's events, with their order and fields. Its answer follows from the prompt, so that a
second stand-in continues a text as the first one would have.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from tests.gateway.running import KEY, KEY_LINE, METRICS_KEY, METRICS_LINE
from winhost.gateway.api_keys import ApiKeys
from winhost.gateway.connections import ClientConnection, Clients, PendingConnection
from winhost.gateway.engines import Engines
from winhost.gateway.front_door import FrontDoor
from winhost.gateway.gateway_settings import parse_settings
from winhost.gateway.gpu_metrics import GpuMetrics
from winhost.gateway.keeper_client import Image
from winhost.gateway.key_use import KeyUse
from winhost.gateway.strict_http import Framing
from winhost.gateway.trusted_proxies import TrustedProxies
from winhost.gateway.turns import Turns

MODEL = "chat"
STEP_S = 0.1  # between two tokens
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
_ENDS = (" ", "\n", "\n\n", "  ", "é ", "", "🦀", ". ", "    ")


def tokens_of(prompt: str) -> list[str]:
    """Return the whole answer to a prompt, which is `COUNT/SEED` and any text after it."""
    count, seed = prompt.split(" ")[0].split("/")[:2]
    drawn = random.Random(seed)
    blank = [" "] if drawn.random() < 0.2 else []
    return [*blank, *(f"{number}{drawn.choice(_ENDS)}" for number in range(int(count) - len(blank)))]


class TwinEngine:
    """requests: their ids and bodies; hangs: it says nothing more; stuck: no token comes, while /health is well; sick:
    so says its /health; errors: streams end with such an error in the middle, as vLLM's do where its core died.
    Prompts: see `tokens_of`; with `slow` nothing comes for long before the first token; `status N` is an answer with
    that.
    """

    def __init__(self, socket: Path, name: str) -> None:
        self.socket, self.name = socket, name
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.sick = self.hangs = self.stuck = self.asleep = False
        self.errors = self.starts = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._work: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        self.hangs = self.sick = self.stuck = False
        self.errors = 0
        self.starts += 1
        if self._server is None:
            self._server = await asyncio.start_unix_server(self._serve, self.socket)

    @property
    def listens(self) -> bool:
        return self._server is not None

    async def kill(self) -> None:
        """Close every connection and stop listening, as after SIGKILL."""
        self.hangs = True
        if self._server:
            self._server.close()
            self._server = None
        for writer in [*self._open]:
            writer.transport.abort()
        for task in [*self._work]:
            task.cancel()
        with suppress(FileNotFoundError):
            self.socket.unlink()

    async def _lives(self, computes: bool = False) -> None:
        while self.hangs or (computes and self.stuck):
            await asyncio.sleep(STEP_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._open.add(writer)
        self._work.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
                body = await reader.readexactly(int(lines.get("content-length", 0)))
                await self._lives()
                await self._answer(writer, head.split(" ")[1], lines.get("x-request-id", ""), body)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(writer)
            self._work.discard(task)
            writer.transport.abort()

    async def _answer(self, writer: asyncio.StreamWriter, path: str, name: str, body: bytes) -> None:
        if path == "/health":
            await self._plain(writer, 503 if self.sick else 200, b"")
            return
        if not path.startswith("/v1/"):
            if path.startswith(("/sleep", "/wake_up")):
                self.asleep = path.startswith("/sleep")
            await self._plain(writer, 200, json.dumps({"is_sleeping": self.asleep, "success": True}).encode())
            return
        assert not self.asleep
        asked = json.loads(body)
        self.requests.append((name, asked))
        prompt, said = self._asked(asked)
        if "status" in prompt:
            await self._plain(writer, int(prompt.split("status ")[1]), b'{"error":{"code":400}}')
            return
        await asyncio.sleep(30 if "slow" in prompt else STEP_S)
        await self._lives(computes=True)
        whole = tokens_of(prompt)
        assert "".join(whole).startswith(said), (said, whole)
        rest = _remaining_tokens(whole, said)
        most = asked.get("max_completion_tokens") or asked.get("max_tokens", 10_000)
        told = rest[:most]
        finish = "length" if len(rest) > most else "stop"
        taken = 10 + len(whole) - len(rest)
        if asked.get("stream"):
            await self._stream(writer, asked, name, told, finish, taken)
            return
        message = {"content": "".join(told), "role": "assistant"}
        choice = {"index": 0, "message": message, "text": "".join(told), "finish_reason": finish}
        await self._plain(writer, 200, json.dumps({"choices": [choice]}).encode())

    def _asked(self, asked: dict[str, Any]) -> tuple[str, str]:
        """Return the prompt, and the text that the answer has to continue."""
        if "prompt" in asked:
            prompt, _, said = asked["prompt"].partition("|")
            return "1/1" if prompt in ("1", "The quick brown fox") else prompt, said  # as the gateway asks it itself
        *before, last = asked["messages"]
        if last["role"] == "user":
            assert not asked.get("continue_final_message")
            return last["content"], ""
        assert asked["continue_final_message"] is True
        assert asked["add_generation_prompt"] is False
        return before[-1]["content"], last["content"]

    async def _plain(self, writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
        await writer.drain()

    async def _stream(
        self, writer: asyncio.StreamWriter, asked: dict[str, Any], name: str, told: list[str], finish: str, taken: int
    ) -> None:
        options = asked.get("stream_options") or {}
        always = options.get("continuous_usage_stats")
        chat = "messages" in asked
        kind, number = ("chat.completion.chunk", 17) if chat else ("text_completion", 19)
        envelope = {"id": f"cmpl-{self.name}-{name}", "object": kind, "created": number, "model": asked["model"]}

        async def event(more: Mapping[str, Any], given: int) -> None:
            usage = {"prompt_tokens": taken, "total_tokens": taken + given, "completion_tokens": given}
            told = {**envelope, **more, **({"usage": usage} if always or not more["choices"] else {})}
            await self._lives(computes=True)
            writer.write(_chunk(f"data: {json.dumps(told, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()))
            await writer.drain()

        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
        if chat:
            delta = {"role": "assistant", "content": ""}
            await event({"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]}, 0)
        for index, token in enumerate(told or [""]):
            if self.errors and index == len(told) // 2:
                error = f'data: {{"error": {{"code": {self.errors}}}}}\n\ndata: [DONE]\n\n'
                writer.write(_chunk(error.encode()) + b"0\r\n\r\n")
                return
            ends = finish if index + 1 >= len(told) else None
            text = {"delta": {"content": token}} if chat else {"text": token}
            end = {"stop_reason": None} if ends or not chat else {}
            choice = {"index": 0, **text, "logprobs": None, "finish_reason": ends, **end}
            await event({"choices": [choice]}, index + 1 if told else 0)
            await asyncio.sleep(STEP_S)
        if options.get("include_usage"):
            await event({"choices": []}, len(told))
        await self._lives()
        writer.write(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()


def _remaining_tokens(whole: list[str], said: str) -> list[str]:
    """Return the tokens after this text, the first of them perhaps in part."""
    left = len(said)
    for index, token in enumerate(whole):
        if left < len(token):
            return [token[left:], *whole[index + 1 :]]
        left -= len(token)
    return []


def _chunk(part: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(part), part)


class OneUnit:
    """A stand-in for the keeper with one engine. start_s: the duration of a cold start; restore_s: of a start from
    its image.
    """

    start_s, restore_s = 50.0, 7.0

    def __init__(self, engine: TwinEngine) -> None:
        self._engine = engine
        self.did: list[str] = []
        self._coming: asyncio.Task[None] | None = None
        self._image = self._restored = False

    async def start(self, unit: str) -> None:
        self._restored = self._image
        self.did.append("restore" if self._restored else "start")
        self._coming = asyncio.ensure_future(self._come(self.restore_s if self._restored else self.start_s))

    async def _come(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._engine.asleep = self._restored
        await self._engine.start()

    async def stop(self, unit: str) -> None:
        self.did.append("stop")
        await self._end(90 if self._engine.hangs and self._engine.listens else 0.5)

    async def kill(self, unit: str) -> None:
        self.did.append("kill")
        await self._end(0.5)

    async def _end(self, seconds: float) -> None:
        if self._coming:
            self._coming.cancel()
        await asyncio.sleep(seconds)
        await self._engine.kill()

    async def runs(self, unit: str) -> bool:
        return self._engine.listens or bool(self._coming and not self._coming.done())

    async def suspend(self, unit: str) -> None:
        self.did.append("suspend")

    async def resume(self, unit: str) -> None:
        self.did.append("resume")

    async def image(self, unit: str) -> Image:
        return Image(exists=self._image, used=self._restored)

    async def take_image(self, unit: str) -> None:
        self.did.append("take")
        self._image = True
        await self._end(10)

    async def confirm_image(self, unit: str) -> None:
        self.did.append("confirm")

    async def free_mib(self) -> dict[int, int]:
        return {}


class Twins:
    """The gateway and its engines. door: its front door; unit: of a single engine."""

    def __init__(
        self, folder: Path, first: TwinEngine, second: TwinEngine, door: FrontDoor, unit: "OneUnit | None" = None
    ) -> None:
        self.socket, self.first, self.second, self.door = folder / "door.sock", first, second, door
        self.unit = unit or OneUnit(first)

    async def ask(self, path: str, body: Any = None, key: str = KEY) -> tuple[int, bytes, bool]:
        """Send a request. Return the status, the body, and whether that is complete."""
        reader, writer = await asyncio.open_unix_connection(self.socket)
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
        head += f"Connection: close\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        try:
            raw = await reader.read()
        except ConnectionError:
            raw = b""
        finally:
            writer.close()
        head_bytes, _, rest = raw.partition(b"\r\n\r\n")
        status = int(head_bytes.split(b" ")[1]) if head_bytes else 0
        if b"Transfer-Encoding: chunked" not in head_bytes:
            return status, rest, True
        return status, *_dechunked(rest)

    async def metrics(self) -> str:
        return (await self.ask("/metrics", key=METRICS_KEY))[1].decode()


def _dechunked(body: bytes) -> tuple[bytes, bool]:
    parts = []
    while body:
        size, _, body = body.partition(b"\r\n")
        if int(size, 16) == 0:
            return b"".join(parts), True
        parts.append(body[: int(size, 16)])
        body = body[int(size, 16) + 2 :]
    return b"".join(parts), False


@asynccontextmanager
async def twins(folder: Path, hold: int = 60, within: int = 1, **limits: int) -> AsyncIterator[Twins]:
    """Start a gateway with two engines."""
    second = TwinEngine(folder / "b.sock", "b")
    async with _door(folder, {"engine": {"socket": str(second.socket)}}, second, hold, within, limits) as found:
        await found.first.start()
        await second.start()
        yield found


@asynccontextmanager
async def single_engine(folder: Path, hold: int = 120, within: int = 1, *, image: bool = False) -> AsyncIterator[Twins]:
    """Start a gateway with one engine, which it starts again after failures. image: from its process on disk, which
    exists already.
    """
    turns = {"gpus": [0], "unit": "winhost-engine-chat.service"}
    turns |= (
        {"between": "sleep", "version": "0.24.0", "suspend": True, "image": True}
        if image
        else {"between": "stop", "resident": True}
    )
    async with _door(folder, {}, TwinEngine(folder / "none.sock", "none"), hold, within, {}, turns) as found:
        await asyncio.sleep(120)
        yield found


@asynccontextmanager
async def _door(
    folder: Path,
    standby: Mapping[str, Any],
    second: TwinEngine,
    hold: int,
    within: int,
    limits: Mapping[str, int],
    turns_of_model: Mapping[str, Any] | None = None,
) -> AsyncIterator[Twins]:
    first = TwinEngine(folder / "a.sock", "a")
    model: dict[str, Any] = {"name": MODEL, "engine": {"socket": str(first.socket)}, "served_as": "m"}
    model["standby"] = {**standby, "within": within}
    text = {"listen": {"socket": str(folder / "door.sock")}, "models": [model], "limits": {"hold": hold, **limits}}
    if turns_of_model:
        model["turns"], text["turns"] = turns_of_model, {"keeper": "/run/keeper.sock"}
    settings = parse_settings(json.dumps(text))
    engines, clients = Engines(settings.limits), Clients(1000, 1000, 1000, 1000)
    unit = OneUnit(first)
    turns = Turns(settings, engines.control, unit)
    keys = ApiKeys(f"{KEY_LINE}\n{METRICS_LINE}\n")
    door = FrontDoor(settings, keys, engines, clients, turns, KeyUse(), GpuMetrics(None))

    def accepted() -> PendingConnection:
        made = lambda: ClientConnection(door.answer, Framing(settings.limits.body_bytes), clients)  # noqa: E731
        return PendingConnection(made, clients, None, TrustedProxies((), False))

    server = await asyncio.get_running_loop().create_unix_server(accepted, folder / "door.sock")
    turns.start()
    try:
        yield Twins(folder, first, second, door, unit)
    finally:
        turns.stop()
        server.close()
        for engine in (first, second):
            await engine.kill()
        clients.close()
        engines.close()
