"""The control endpoints of an engine, as vLLM has them in development mode. Nobody but the gateway reaches them.

Answers are checked, because a 200 alone proves little: /health is 200 on an engine that failed to wake, and an engine
that woke from level 2 without a reload answers 200 and then the same token for ever.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from .gateway_settings import PublishedModel

Call: TypeAlias = "Callable[[str, str, bytes | None, float], Awaitable[tuple[int, bytes]]]"
"""method, path, body, seconds → status and body. Raises NotUp, EngineFault, asyncio.TimeoutError."""

_SHORT_S = 10
_CANARY_S = 60  # the first completion of an engine may still compile
_RESETS = 20
_BETWEEN_S = 0.25
_CANARY: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", {"prompt": "The quick brown fox", "max_tokens": 8}),
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Count to ten."}], "max_tokens": 8}),
    "embedding": ("/v1/embeddings", {"input": "The quick brown fox"}),
}


class WrongAnswer(Exception):
    """An engine answered, but not as a working one would."""


class NotUp(Exception):
    """Nothing listened at the engine's address in time."""


class EngineFault(Exception):
    """An engine took the request and broke off, or said nothing for too long."""


FAULTS = (WrongAnswer, NotUp, EngineFault, asyncio.TimeoutError)


class EngineControl:
    """Put an engine to sleep and wake it. Each call may raise any of FAULTS. hang_up: closes connections to it."""

    def __init__(self, model: PublishedModel, call: Call, hang_up: Callable[[], None] = lambda: None) -> None:
        self._model, self._call, self.hang_up = model, call, hang_up

    async def sleep(self, level: int, seconds: float) -> None:
        """Return once the engine sleeps and has released its memory."""
        # vLLM reads the query alone. Without it, the mode is `abort`, which cuts answers.
        await self._ok("POST", f"/sleep?level={level}&mode=wait", seconds)
        if not await self.sleeping():
            raise WrongAnswer("it says that it is awake after /sleep")

    async def wake(self, level: int, seconds: float) -> None:
        """Return once the engine is awake and has its weights."""
        if level == 2:
            await self._ok("POST", "/wake_up?tags=weights", seconds)
            await self._ok("POST", "/collective_rpc", seconds, {"method": "reload_weights"})
            await self._ok("POST", "/wake_up?tags=kv_cache", seconds)
        else:
            await self._ok("POST", "/wake_up", seconds)
        if await self.sleeping():
            raise WrongAnswer("it says that it sleeps after /wake_up")

    async def sleeping(self) -> bool:
        found = _object(await self._ok("GET", "/is_sleeping", _SHORT_S)).get("is_sleeping")
        if not isinstance(found, bool):
            raise WrongAnswer("/is_sleeping")
        return found

    async def healthy(self) -> bool:
        """Tell whether the engine listens and does not say that it is dead. One that sleeps, or failed to wake, is
        healthy, too.
        """
        try:
            return (await self._call("GET", "/health", None, _SHORT_S))[0] == 200
        except FAULTS:
            return False

    async def canary(self) -> str:
        """The answer to a fixed request, for comparison. The cache is emptied first: cached answers differ from others.
        Nobody else may be asking: an answer also depends on what is computed beside it.
        """
        for _ in range(_RESETS):  # it fails while a request that has just ended still holds blocks
            if _object(await self._ok("POST", "/reset_prefix_cache", _SHORT_S)).get("success", True):
                break
            await asyncio.sleep(_BETWEEN_S)
        return await self.answers()

    async def answers(self) -> str:
        """The answer to the canary's request as the engine is now: its text, or the first numbers of an embedding."""
        path, request = _CANARY[self._model.ready]
        greedy = {} if "input" in request else {"temperature": 0, "seed": 0}
        asked = {"model": self._model.served_as, **request, **greedy}
        found = _object(await self._ok("POST", path, _CANARY_S, asked))
        try:
            if "data" in found:
                return " ".join(f"{number:.2f}" for number in found["data"][0]["embedding"][:32])
            choice = found["choices"][0]
            return str(choice["text"] if "text" in choice else choice["message"]["content"])
        except (LookupError, TypeError, ValueError):
            raise WrongAnswer("no completion") from None

    async def _ok(self, method: str, path: str, seconds: float, body: Any = None) -> bytes:
        data = None if body is None else json.dumps(body).encode("ascii")
        status, answer = await self._call(method, path, data, seconds)
        if status != 200:
            raise WrongAnswer(f"{status} to {path.partition('?')[0]}")
        return answer


def _object(answer: bytes) -> dict[str, Any]:
    if not answer:
        return {}
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        raise WrongAnswer("no JSON") from None
    if not isinstance(found, dict):
        raise WrongAnswer("no object")
    return found
