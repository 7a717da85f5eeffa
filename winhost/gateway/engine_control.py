"""The control endpoints of an engine, which vLLM has in development mode. Only the gateway can reach them.

A status of 200 proves little, so answers are checked: /health answers 200 on an engine that failed to wake, and an
engine that woke from level 2 without a reload answers 200 and then generates the same token for ever.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from .gateway_settings import PublishedModel

Call: TypeAlias = "Callable[[str, str, bytes | None, float], Awaitable[tuple[int, bytes]]]"
"""method, path, body, seconds → status and body. Raises EngineUnreachable, EngineFault, asyncio.TimeoutError."""

_SHORT_S = 10
_CANARY_S = 60  # the first completion of an engine may still compile
_RESETS = 20
_RESET_PAUSE_S = 0.25
_CANARY: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", {"prompt": "The quick brown fox", "max_tokens": 8}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Count to ten."}], "max_tokens": 8}),
    "embedding": ("/v1/embeddings", {"input": "The quick brown fox"}),
}


class UnexpectedAnswer(Exception):
    """An engine answered, but not as a working one would."""


class EngineUnreachable(Exception):
    """No process listened at the engine's address in time."""


class EngineFault(Exception):
    """An engine took the request, and then closed the connection, sent nothing for too long, or sent invalid HTTP."""


FAULTS = (UnexpectedAnswer, EngineUnreachable, EngineFault, asyncio.TimeoutError)


class EngineControl:
    """Put an engine to sleep and wake it. Each call may raise any of FAULTS. retire_connections: stops using the open
    connections to it.
    """

    def __init__(
        self, model: PublishedModel, call: Call, retire_connections: Callable[[], None] = lambda: None
    ) -> None:
        self._model, self._call, self.retire_connections = model, call, retire_connections

    async def sleep(self, level: int, seconds: float) -> None:
        """Put the engine to sleep, and return once it has released its memory."""
        # vLLM reads only the query. Without `mode=wait` the mode is `abort`, which cuts answers.
        await self._call_ok("POST", f"/sleep?level={level}&mode=wait", seconds)
        if not await self.is_sleeping():
            raise UnexpectedAnswer("it says that it is awake after /sleep")

    async def wake(self, level: int, seconds: float) -> None:
        """Wake the engine, and return once it has its weights."""
        if level == 2:
            await self._call_ok("POST", "/wake_up?tags=weights", seconds)
            await self._call_ok("POST", "/collective_rpc", seconds, {"method": "reload_weights"})
            await self._call_ok("POST", "/wake_up?tags=kv_cache", seconds)
        else:
            await self._call_ok("POST", "/wake_up", seconds)
        if await self.is_sleeping():
            raise UnexpectedAnswer("it says that it sleeps after /wake_up")

    async def is_sleeping(self) -> bool:
        reply = _parse_object(await self._call_ok("GET", "/is_sleeping", _SHORT_S)).get("is_sleeping")
        if not isinstance(reply, bool):
            raise UnexpectedAnswer("/is_sleeping")
        return reply

    async def is_healthy(self) -> bool:
        """Tell whether the engine listens and does not report that it is dead. One that sleeps, or failed to wake,
        counts as healthy.
        """
        try:
            return (await self._call("GET", "/health", None, _SHORT_S))[0] == 200
        except FAULTS:
            return False

    async def canary_answer(self) -> str:
        """Return the answer to a fixed request, for comparison. The prefix cache is emptied first, because cached
        answers differ. No other request may run, because an answer depends on what is computed in the same batch.
        """
        for _ in range(_RESETS):  # a reset fails while a request that has just ended still holds blocks
            if _parse_object(await self._call_ok("POST", "/reset_prefix_cache", _SHORT_S)).get("success", True):
                break
            await asyncio.sleep(_RESET_PAUSE_S)
        return await self.fixed_answer()

    async def fixed_answer(self) -> str:
        """Return the answer to the canary's request with the present cache: the text, or the first numbers of an
        embedding.
        """
        path, request = _CANARY[self._model.ready]
        greedy = {} if "input" in request else {"temperature": 0, "seed": 0}
        request_body = {"model": self._model.served_as, **request, **greedy}
        reply = _parse_object(await self._call_ok("POST", path, _CANARY_S, request_body))
        try:
            if "data" in reply:
                return " ".join(f"{number:.2f}" for number in reply["data"][0]["embedding"][:32])
            choice = reply["choices"][0]
            return str(choice["text"] if "text" in choice else choice["message"]["content"])
        except (LookupError, TypeError, ValueError):
            raise UnexpectedAnswer("no completion") from None

    async def _call_ok(self, method: str, path: str, seconds: float, body: Any = None) -> bytes:
        data = None if body is None else json.dumps(body).encode("ascii")
        status, answer = await self._call(method, path, data, seconds)
        if status != 200:
            raise UnexpectedAnswer(f"{status} to {path.partition('?')[0]}")
        return answer


def _parse_object(answer: bytes) -> dict[str, Any]:
    if not answer:
        return {}
    try:
        reply = json.loads(answer)
    except (ValueError, RecursionError):
        raise UnexpectedAnswer("no JSON") from None
    if not isinstance(reply, dict):
        raise UnexpectedAnswer("no object")
    return reply
