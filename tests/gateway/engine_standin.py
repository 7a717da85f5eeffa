"""A stand-in for vLLM on a Unix socket, with vLLM's routes. The prompt of a request decides what it does."""

import asyncio
import gzip
import json
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.processes import PATIENCE_S


class StandInEngine:
    """requests: method, path and body of what came; ids: their X-Request-Id; gone: the bodies of those whose client
    left before the end of its answer.

    Prompts: `slow N` streams N words; `held` streams one, and the others once its client has set `first_came`; `die`
    breaks off in the stream, `die at once` before it; `hang…` says nothing; `unavailable` is a 503 with Retry-After;
    `status N` has that status, `header` a control byte in one, `encoded` is compressed; `takes N` reports that many
    tokens, `spends I O` so many of prompt and answer; `flood N` streams N MiB, and `flooded` counts them as they go;
    anything else is echoed.
    metrics: what /metrics says.
    """

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.requests: list[tuple[str, str, bytes]] = []
        self.ids: list[str] = []
        self.gone: list[bytes] = []
        self.flooded = 0
        self.first_came = threading.Event()
        self.metrics = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._runner: web.AppRunner | None = None

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def start(self) -> None:
        self._do(self._start())

    def stop(self) -> None:
        self._do(self._stop())

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0, handler_cancellation=True)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self.socket)).start()

    async def _stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        with suppress(FileNotFoundError):
            self.socket.unlink()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append((request.method, request.raw_path, body))
        self.ids.append(request.headers.get("X-Request-Id", ""))
        if request.raw_path == "/metrics":
            return web.Response(text=self.metrics)
        try:
            return await self._to(request, json.loads(body))
        except (asyncio.CancelledError, ConnectionError):  # the latter if it was just about to write
            self.gone.append(body)
            raise

    async def _to(self, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        prompt = str(asked.get("prompt"))
        if prompt.startswith("hang"):
            await asyncio.sleep(PATIENCE_S)
        if prompt == "die at once":
            assert request.transport
            request.transport.close()
        if prompt == "unavailable":
            return web.json_response({"error": {"message": "paused"}}, status=503, headers={"Retry-After": "7"})
        if prompt.startswith("status "):
            return web.Response(status=int(prompt[7:]), reason="Odd")
        if prompt == "encoded":
            return web.Response(body=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"})
        if prompt == "header":
            assert request.transport
            request.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nRetry-After: a\x01b\r\n\r\n{}")
            request.transport.close()
        usage = _usage(prompt)
        if not asked.get("stream"):
            return web.json_response({"model": asked["model"], "choices": [{"text": prompt}], "usage": usage})
        wants = (asked.get("stream_options") or {}).get("include_usage")
        return await self._stream(request, prompt, f'{{"choices":[],"usage":{json.dumps(usage)}}}' if wants else "")

    async def _stream(self, request: web.Request, prompt: str, usage: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for _ in range(int(prompt[6:]) if prompt.startswith("flood ") else 0):
            await response.write(b"x" * 2**20)
            self.flooded += 1
        words = int(prompt.partition(" ")[2] or 3) if prompt.startswith("slow") else 3
        for number in range(words):
            await response.write(f'data: {{"choices": [{{"text": "{prompt}/{number} "}}]}}\n\n'.encode())
            await asyncio.sleep(0.1 if prompt.startswith("slow") else 0)
            if prompt.startswith("held") and number == 0:
                await asyncio.to_thread(self.first_came.wait, PATIENCE_S)
            if prompt == "die" and number == 1:
                assert request.transport
                request.transport.abort()
        if usage:
            await response.write(f"data: {usage}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


def _usage(prompt: str) -> dict[str, int]:
    what, *numbers = prompt.split(" ")
    if what == "takes":
        return {"total_tokens": int(numbers[0])}
    if what != "spends":
        return {}
    taken, given = map(int, numbers)
    return {"prompt_tokens": taken, "total_tokens": taken + given, "completion_tokens": given}
