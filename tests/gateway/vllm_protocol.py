"""vLLM's sleep mode without a GPU: states, answers, durations and failures of real engines. The durations are those
of a 7.6B model in bf16 on one GPU, in seconds of the event loop's clock. `Gpu.broken_rules` lists actions that a
gateway must never take.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

ALL_TAGS = frozenset({"weights", "kv_cache"})
NO_ROOM = "Call to wake_up method failed: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:163"
AGAIN = "Call to wake_up method failed: CUDA Error: invalid argument at /workspace/csrc/cumem_allocator.cpp:169"


class ConnectionLost(Exception):
    """The process ended while it had a request."""


class NobodyListens(Exception):
    """The process does not run, or does not listen yet."""


@dataclass(frozen=True)
class Times:
    """Durations, by default with pinned memory. `scaled` is for tests in real time."""

    start: float = 47.2
    first_sleep: float = 12.2
    sleep: float = 0.38
    wake: float = 0.44
    sleep_2: float = 0.05
    reload: float = 2.2
    stop: float = 0.6
    stop_after_sleep: float = 5.0
    answer: float = 0.12  # of 24 tokens

    def scaled(self, by: float) -> "Times":
        return Times(**{name: value * by for name, value in vars(self).items()})


UNPINNED = Times(first_sleep=10.2, sleep=9.9, wake=2.7)


@dataclass
class Gpu:
    """A GPU. Memory in MiB, by engine; moving: engines that sleep, wake or start now."""

    total: int
    used: dict[str, int] = field(default_factory=dict)
    moving: "list[ProtocolEngine]" = field(default_factory=list)
    broken_rules: list[str] = field(default_factory=list)

    @property
    def free(self) -> int:
        return self.total - sum(self.used.values())


@dataclass(eq=False)
class ProtocolEngine:
    """One engine on one GPU. faults: what goes wrong once, by name:

    `lie asleep` keeps its memory, `corrupt` answers otherwise after waking, `no wake` runs out of memory, `die asleep`
    and `die waking` end the process, `hang` never answers a request, `slow start` takes ten times as long.
    """

    name: str
    gpu: Gpu
    awake: int
    asleep: int = 1874
    times: Times = field(default_factory=Times)
    dev_mode: bool = True
    faults: set[str] = field(default_factory=set)
    up: bool = False
    level: int = 0
    dead: bool = False
    corrupt: bool = False
    slept: bool = False
    starts: int = 0
    running: int = 0
    cached: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    _resident: set[str] = field(default_factory=lambda: set(ALL_TAGS))
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    # ---- its unit

    async def start(self) -> None:
        """Start, and return when the engine listens or has failed."""
        if self.up:
            return
        self.starts += 1
        async with self._moves():
            if self.gpu.free < self.awake:
                return  # Free memory on device (…) on startup is less than desired GPU memory utilization
            self.gpu.used[self.name] = self.awake
            slow = 10 if "slow start" in self.faults else 1
            self.faults.discard("slow start")
            await asyncio.sleep(self.times.start * slow)
            self._resident, self.level = set(ALL_TAGS), 0
            self.dead = self.corrupt = self.slept = False
            self.cached.clear()
            self.up = True

    async def restore(self) -> None:
        """Start from the image of the process: the engine sleeps, off the GPU."""
        await asyncio.sleep(4)
        self._resident, self.level, self.up, self.slept = set(), 1, True, True
        self.gpu.used[self.name] = 4
        await self._tell()

    async def stop(self) -> None:
        if self.up:
            await asyncio.sleep(self.times.stop_after_sleep if self.slept else self.times.stop)
        await self.die()

    async def die(self) -> None:
        """End. Requests get no answer, and the memory is free."""
        self.up = False
        self.gpu.used.pop(self.name, None)
        await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    @asynccontextmanager
    async def _moves(self) -> Any:
        """Note a move on the GPU. Two engines that move at the same time crash."""
        self.gpu.moving.append(self)
        try:
            if len(self.gpu.moving) > 1:
                self.gpu.broken_rules.append(f"two at once: {', '.join(each.name for each in self.gpu.moving)}")
                for each in tuple(self.gpu.moving):
                    await each.die()
            yield
        finally:
            self.gpu.moving.remove(self)

    # ---- HTTP

    async def answer(self, method: str, target: str, body: bytes | None) -> tuple[int, Any]:
        """Return the status and JSON. Raises NobodyListens, ConnectionLost."""
        if not self.up:
            raise NobodyListens(self.name)
        path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
        if path == "/health":
            return 200, None  # asleep as well, and also where waking failed
        if path == "/metrics":
            return 200, {}
        routes: dict[str, Callable[..., Any]] = {
            "/sleep": self._sleep,
            "/wake_up": self._wake,
            "/is_sleeping": self._is_sleeping,
            "/reset_prefix_cache": self._reset,
            "/collective_rpc": self._rpc,
        }
        if path in routes:
            if not self.dev_mode:
                return 404, {"detail": "Not Found"}
            status, answer = await routes[path](query, json.loads(body) if body else {})
            if not self.up:
                raise ConnectionLost(self.name)
            return status, answer
        if method == "POST" and path.startswith("/v1/"):
            return await self._complete(json.loads(body or b"{}"))
        return 404, {"detail": "Not Found"}

    async def _is_sleeping(self, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        return 200, {"is_sleeping": bool(self.level)}

    async def _sleep(self, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        level, mode = query.get("level", ["1"])[0], query.get("mode", ["abort"])[0]  # the body is not read
        if level not in ("0", "1", "2") or mode not in ("abort", "wait", "keep"):
            return 400, {"error": {"message": "validation"}}
        if self.level:
            return 200, {"status": "sleeping", "level": self.level}  # a warning in its log, and nothing else
        if self.running and mode != "wait":
            self.gpu.broken_rules.append(f"{self.name} fell asleep with {self.running} requests")
        async with self._changed:
            await self._changed.wait_for(lambda: not self.running or not self.up)
        async with self._moves():
            usual = self.times.sleep if self.slept else self.times.first_sleep
            await asyncio.sleep(usual if level == "1" else self.times.sleep_2)
            if not self.up:
                return 0, None
            self.level, self.slept = int(level), True
            self._resident.clear()
            self.cached.clear()
            if "lie asleep" in self.faults:
                self.faults.discard("lie asleep")
            else:
                self.gpu.used[self.name] = self.asleep
        if "die asleep" in self.faults:
            self.faults.discard("die asleep")
            asyncio.get_running_loop().call_later(1, lambda: self._later(self.die()))
        return 200, {"status": "sleeping", "level": self.level}

    def _later(self, work: Any) -> None:
        self._task = asyncio.ensure_future(work)

    async def _wake(self, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        tags = set(query.get("tags", ALL_TAGS)) & (ALL_TAGS - self._resident)
        if not self.level:
            return 200, {"status": "awake", "tags": None}
        if self.dead:
            return 500, {"error": {"message": AGAIN}}
        async with self._moves():
            await asyncio.sleep(self.times.wake * len(tags) / len(ALL_TAGS))
            if not self.up:
                return 0, None
            if failed := await self._failed_to_wake():
                return failed
            self.gpu.used[self.name] = self.awake
        self._resident |= tags
        if self.level == 2 and "weights" in tags:
            self.corrupt = True  # until the weights are read again
        if "corrupt" in self.faults:
            self.faults.discard("corrupt")
            self.corrupt = True
        if self._resident == ALL_TAGS:
            self.level = 0
            await self._tell()
        return 200, {"status": "sleeping" if self.level else "awake", "tags": None}

    async def _failed_to_wake(self) -> "tuple[int, Any] | None":
        if "die waking" in self.faults:
            self.faults.discard("die waking")
            await self.die()
            return 0, None
        room = self.gpu.free >= self.awake - self.gpu.used[self.name]
        if room and "no wake" not in self.faults:
            return None
        if not room:
            self.gpu.broken_rules.append(f"{self.name} woken without room")
        self.faults.discard("no wake")
        self.dead = True  # and it keeps what it had got by then, and says that it is healthy
        self.gpu.used[self.name] += min(self.gpu.free, 15_360)
        return 500, {"error": {"message": NO_ROOM}}

    async def _rpc(self, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        if body.get("method") != "reload_weights":
            return 400, {"error": {"message": "method"}}
        await asyncio.sleep(self.times.reload)
        self.corrupt = False
        return 200, {"results": [None]}

    async def _reset(self, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        if self.running:
            return 200, {"success": False}
        self.cached.clear()
        return 200, {"success": True}

    async def _complete(self, asked: dict[str, Any]) -> tuple[int, Any]:
        """Answer a request. One to a sleeping engine waits until it is awake."""
        prompt = str(asked.get("prompt", asked.get("messages", asked.get("input"))))
        self.asked.append(prompt)
        hangs = "hang" in self.faults
        self.faults.discard("hang")
        async with self._changed:
            await self._changed.wait_for(lambda: (not self.level and not self.dead and not hangs) or not self.up)
        if not self.up:
            raise ConnectionLost(self.name)
        self.running += 1
        try:
            usual = self.times.answer * asked.get("max_tokens", 24) / 24
            await asyncio.sleep(float(asked.get("seconds", usual)))
        finally:
            self.running -= 1
            await self._tell()
        if not self.up:
            raise ConnectionLost(self.name)
        if self.level:
            self.gpu.broken_rules.append(f"{self.name} computed while it slept")
        return 200, {"model": asked.get("model"), "choices": [{"text": self._text(prompt), "finish_reason": "length"}]}

    def _text(self, prompt: str) -> str:
        """Return the answer. Cached and uncached answers differ. Without the weights it is one token, repeated."""
        seen = prompt in self.cached
        self.cached.add(prompt)
        return "!" * 16 if self.corrupt else f"{self.name}: {prompt}{' again' if seen else ''}"
