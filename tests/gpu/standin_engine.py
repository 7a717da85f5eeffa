"""Stands in for `vllm serve` where there is no GPU: the HTTP surface that winhost uses, sleep mode among it."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from aiohttp import web

LENGTH = 4096


class Engine:
    """One model on a Unix socket."""

    def __init__(self, words: list[str]) -> None:
        given = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
        self.socket, self.name = Path(given["uds"]), given["served-model-name"]
        self.length = int(given.get("max-model-len", LENGTH))
        self.asleep = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path in ("/sleep", "/wake_up"):
            self.asleep = path == "/sleep"
            return web.json_response({})
        if path == "/is_sleeping":
            return web.json_response({"is_sleeping": self.asleep})
        if path == "/version":
            return web.json_response({"version": "0.24.0"})
        if path == "/v1/models":
            return web.json_response({"data": [{"id": self.name, "max_model_len": self.length}]})
        if path == "/metrics":
            return web.Response(text=f'vllm:num_requests_running{{model_name="{self.name}"}} 0.0\n')
        if path in ("/v1/completions", "/v1/chat/completions"):
            while self.asleep:
                await asyncio.sleep(0.01)
            return await self.complete(request, json.loads(await request.read()))
        return web.Response()

    async def complete(self, request: web.Request, asked: dict[str, Any]) -> web.StreamResponse:
        if asked.get("model") != self.name:
            return web.json_response(
                {"error": {"message": f"The model `{asked.get('model')}` does not exist."}}, status=404
            )
        if isinstance(asked.get("prompt"), list):
            message = f"This model's maximum context length is {self.length} tokens."
            return web.json_response({"error": {"message": message}}, status=400)
        tokens = asked.get("max_tokens", 16)
        usage = {"completion_tokens": tokens, "prompt_tokens": 1, "total_tokens": tokens + 1}
        head = {"id": "cmpl-1", "object": "text_completion", "created": int(time.time()), "model": self.name}
        if not asked.get("stream"):
            choice = {"index": 0, "text": "yes", "message": {"role": "assistant", "content": "yes"}}
            return web.json_response({**head, "choices": [{**choice, "finish_reason": "length"}], "usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        word = {"index": 0, "text": "word ", "delta": {"content": "word "}}
        pieces = [{"choices": [word]} for _ in range(tokens)]
        for piece in (*pieces, {"choices": [], "usage": usage}):
            await response.write(b"data: " + json.dumps({**head, **piece}).encode() + b"\n\n")
            await asyncio.sleep(0.001)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def serve(self) -> None:
        compiled = Path(os.environ["VLLM_CACHE_ROOT"], "graphs/one")
        compiled.parent.mkdir(parents=True, exist_ok=True)
        compiled.write_text("compiled\n")
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(self.socket)).start()
        await asyncio.sleep(86_400)  # it is stopped before


def main() -> None:
    asyncio.run(Engine(sys.argv[2:]).serve())
