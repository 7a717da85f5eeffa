"""A queue of requests in which API keys take turns, so that nobody waits behind another key's crowd."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar


class WaitedTooLong(Exception):
    """The turn of a request did not come in time."""


@dataclass(eq=False)
class Waiting:
    """A request of a key in the queue. begun: it has got what it waited for; wakes: done then, if it had to wait."""

    key: str
    begun: bool = field(default=False, init=False)
    wakes: "asyncio.Future[None] | None" = field(default=None, init=False)


_W = TypeVar("_W", bound=Waiting)


class FairLine(Generic[_W]):
    """The queue. may: tells whether a request may begin now; None also holds back all others, so that a request that
    needs much gets it in the end; begin: counts a request that begins, before anything else can happen.
    """

    def __init__(self, may: "Callable[[_W], bool | None]", begin: Callable[[_W], None]) -> None:
        self._may, self._begin = may, begin
        self._keys: dict[str, list[_W]] = {}  # in the order of their turns

    async def wait(self, waiting: _W, until: float) -> None:
        """Wait until the request begins. until: a time of the event loop. Raises WaitedTooLong."""
        if not self._keys and self._may(waiting):
            waiting.begun = True
            self._begin(waiting)
            return
        self._keys.setdefault(waiting.key, []).append(waiting)
        try:
            self.go_on()
            if not waiting.begun:
                loop = asyncio.get_running_loop()
                waiting.wakes = loop.create_future()
                await asyncio.wait({waiting.wakes}, timeout=max(0.01, until - loop.time()))
        finally:
            self._leave(waiting)
        if not waiting.begun:
            raise WaitedTooLong

    def go_on(self) -> None:
        """Begin all requests that may, after something changed: the oldest of each key in turn."""
        while waiting := self._next():
            self._leave(waiting)
            if rest := self._keys.pop(waiting.key, None):
                self._keys[waiting.key] = rest  # behind the other keys
            waiting.begun = True
            self._begin(waiting)
            if waiting.wakes:
                waiting.wakes.set_result(None)

    def _next(self) -> "_W | None":
        for requests in self._keys.values():
            for waiting in requests:
                may = self._may(waiting)
                if may is None:
                    return None
                if may:
                    return waiting
        return None

    def _leave(self, waiting: _W) -> None:
        requests = self._keys.get(waiting.key, [])
        if waiting in requests:
            requests.remove(waiting)
            if not requests:
                del self._keys[waiting.key]


class OneAtATime:
    """A thing that only one request has at a time."""

    def __init__(self) -> None:
        self._taken = False
        self._line: FairLine[Waiting] = FairLine(lambda _: None if self._taken else True, self._begin)

    def _begin(self, _: Waiting) -> None:
        self._taken = True

    async def take(self, key: str, until: float) -> None:
        """Raises WaitedTooLong."""
        waiting = Waiting(key)
        try:
            await self._line.wait(waiting, until)
        except asyncio.CancelledError:
            if waiting.begun:
                self.give_back()
            raise

    def give_back(self) -> None:
        self._taken = False
        self._line.go_on()
