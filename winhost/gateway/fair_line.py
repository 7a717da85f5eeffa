"""Requests that wait for the same thing. API keys take turns, so that nobody waits behind another's crowd."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar


class WaitedTooLong(Exception):
    """Its turn did not come in time."""


@dataclass(eq=False)
class Waiting:
    """A request of this key. begun: is done when it has what it waited for."""

    key: str
    begun: "asyncio.Future[None]"


_W = TypeVar("_W", bound=Waiting)


class FairLine(Generic[_W]):
    """may: whether a request may begin now; None keeps all others back as well, so that what needs much gets it one
    day. begin: does the counting, before anything else can happen.
    """

    def __init__(self, may: "Callable[[_W], bool | None]", begin: Callable[[_W], None]) -> None:
        self._may, self._begin = may, begin
        self._keys: dict[str, list[_W]] = {}  # in the order of their turns

    async def wait(self, waiting: _W, until: float) -> None:
        """Until it begins. until: a time of the event loop. Raises WaitedTooLong."""
        self._keys.setdefault(waiting.key, []).append(waiting)
        try:
            self.go_on()
            if not waiting.begun.done():
                await asyncio.wait({waiting.begun}, timeout=max(0.01, until - asyncio.get_running_loop().time()))
        finally:
            self._leave(waiting)
        if not waiting.begun.done():
            raise WaitedTooLong

    def go_on(self) -> None:
        """Lets begin whoever may, after something changed: of each key in turn the one that waits longest."""
        while waiting := self._next():
            self._leave(waiting)
            if rest := self._keys.pop(waiting.key, None):
                self._keys[waiting.key] = rest  # behind the other keys
            self._begin(waiting)
            waiting.begun.set_result(None)

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
    """Something that one request has at a time."""

    def __init__(self) -> None:
        self._taken = False
        self._line: FairLine[Waiting] = FairLine(lambda _: None if self._taken else True, self._begin)

    def _begin(self, _: Waiting) -> None:
        self._taken = True

    async def take(self, key: str, until: float) -> None:
        """Raises WaitedTooLong."""
        waiting = Waiting(key, asyncio.get_running_loop().create_future())
        try:
            await self._line.wait(waiting, until)
        except asyncio.CancelledError:
            if waiting.begun.done():
                self.give_back()
            raise

    def give_back(self) -> None:
        self._taken = False
        self._line.go_on()
