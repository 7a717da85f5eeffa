"""The side of the engines: a request waits while its engine starts, and the answer is handed on as it comes."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from .engine_control import EngineControl, EngineFault, NotUp
from .gateway_settings import Limits, PublishedModel
from .settings_values import SocketOrPort

_BETWEEN_TRIES_S = 0.25
_CONNECT_S = 5
_MOST_OF_AN_ANSWER = 1_000_000
_READY_S = 30  # the first completion of an engine may still compile
_READY_HOLDS_S = {True: 15, False: 2}
_READY_REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", {"prompt": "1", "max_tokens": 1}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "1"}], "max_tokens": 1}),
    "embedding": ("/v1/embeddings", {"input": "1"}),
}


class Engines:
    """Connections to engines, each for one request: what is kept open may be closed on the other side just then."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._sessions: dict[SocketOrPort, aiohttp.ClientSession] = {}
        self._ready: dict[str, tuple[float, bool]] = {}
        self._asking = asyncio.Lock()

    @asynccontextmanager
    async def answer(
        self, model: PublishedModel, path: str, body: bytes, request_id: str, hold: float | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """path: of this program, never of a client. Raises NotUp, EngineFault."""
        until = time.monotonic() + (self._limits.hold if hold is None else hold)
        response = await self._post(model.engine, path, body, request_id, until)
        try:
            yield response
        finally:
            response.close()  # an engine that was not done stops: its client is gone

    async def _post(
        self, engine: SocketOrPort, path: str, body: bytes, request_id: str, until: float
    ) -> aiohttp.ClientResponse:
        headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
        session = self._session(engine)
        while True:
            try:
                return await session.post(
                    f"http://{_host(engine)}{path}", data=body, headers=headers, allow_redirects=False
                )
            except aiohttp.ClientConnectorError:  # no byte of the request went anywhere
                if time.monotonic() >= until:
                    raise NotUp(str(engine)) from None
                await asyncio.sleep(_BETWEEN_TRIES_S)
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                raise EngineFault(type(error).__name__) from None

    def control(self, model: PublishedModel) -> EngineControl:
        """Of the engine of a model that takes turns."""

        async def call(method: str, path: str, body: "bytes | None", seconds: float) -> "tuple[int, bytes]":
            return await asyncio.wait_for(self._called(model.engine, method, path, body, seconds), seconds)

        return EngineControl(model, call)

    async def _called(
        self, engine: SocketOrPort, method: str, path: str, body: "bytes | None", seconds: float
    ) -> "tuple[int, bytes]":
        headers = {"Content-Type": "application/json"} if body else {}
        url = f"http://{_host(engine)}{path}"
        patience = aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_S)
        try:
            async with self._session(engine).request(
                method, url, data=body, headers=headers, allow_redirects=False, timeout=patience
            ) as answer:
                return answer.status, await answer.content.read(_MOST_OF_AN_ANSWER)
        except aiohttp.ClientConnectorError:
            raise NotUp(str(engine)) from None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineFault(type(error).__name__) from None

    def _session(self, engine: SocketOrPort) -> aiohttp.ClientSession:
        if engine not in self._sessions:
            connector: aiohttp.BaseConnector = (
                aiohttp.UnixConnector(engine.socket, force_close=True, limit=0)
                if engine.socket
                else aiohttp.TCPConnector(force_close=True, limit=0, use_dns_cache=False)
            )
            self._sessions[engine] = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=self._limits.silence),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept"),
            )
        return self._sessions[engine]

    async def ready(self, model: PublishedModel) -> bool:
        """Whether it answers a request with a completion. Asked for anew only once in a while, whoever asks."""
        async with self._asking:
            asked, found = self._ready.get(model.name, (float("-inf"), False))
            if time.monotonic() - asked > _READY_HOLDS_S[found]:
                found = await self._completes(model)
                self._ready[model.name] = time.monotonic(), found
            return found

    async def _completes(self, model: PublishedModel) -> bool:
        path, request = _READY_REQUESTS[model.ready]
        body = json.dumps({"model": model.served_as, **request}).encode("ascii")
        try:
            return await asyncio.wait_for(self._asked(model, path, body), _READY_S)
        except (NotUp, EngineFault, aiohttp.ClientError, asyncio.TimeoutError, OSError):
            return False

    async def _asked(self, model: PublishedModel, path: str, body: bytes) -> bool:
        async with self.answer(model, path, body, "ready", hold=0) as response:
            answer = await response.content.read(_MOST_OF_AN_ANSWER)
        return response.status == 200 and (b'"choices"' in answer or b'"data"' in answer)

    async def close(self) -> None:
        """All connections."""
        for session in self._sessions.values():
            await session.close()


def _host(engine: SocketOrPort) -> str:
    return "engine" if engine.socket else str(engine)


async def parts_of(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Of its body, as they come. Raises EngineFault."""
    try:
        async for part in answer.content.iter_any():
            yield part
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
        raise EngineFault(type(error).__name__) from None
