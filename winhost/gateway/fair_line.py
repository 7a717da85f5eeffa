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
    """The queue. begin: counts a request and returns True if it may begin now; None also holds back all others, so that
    a request that needs much gets it in the end.
    """

    def __init__(self, begin: "Callable[[_W], bool | None]") -> None:
        self._begin = begin
        self._keys: dict[str, list[_W]] = {}  # in the order of their turns

    async def wait(self, waiting: _W, until: float) -> None:
        """Wait until the request begins. until: a time of the event loop. Raises WaitedTooLong."""
        if not self._keys and self._begin(waiting):
            waiting.begun = True
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
        while waiting := self._first_to_begin():
            waiting.begun = True
            self._leave(waiting)
            if others := self._keys.pop(waiting.key, None):
                self._keys[waiting.key] = others  # behind the other keys
            if waiting.wakes:
                waiting.wakes.set_result(None)

    def _first_to_begin(self) -> "_W | None":
        for requests in self._keys.values():
            for waiting in requests:
                begun = self._begin(waiting)
                if begun is None:
                    return None
                if begun:
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
        self._line: FairLine[Waiting] = FairLine(self._begin)

    def _begin(self, _: Waiting) -> "bool | None":
        if self._taken:
            return None
        self._taken = True
        return True

    async def take(self, key: str, until: float) -> None:
        """Wait until no other request has it. Raises WaitedTooLong."""
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
