"""A queue of requests in which API keys take turns, so that no key waits behind another key's crowd."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar


class QueueTimeout(Exception):
    """A request was not admitted in time."""


@dataclass(eq=False)
class QueuedRequest:
    """A request of a key. admitted: it has got what it waited for; wakeup: done then, if it had to wait."""

    key: str
    admitted: bool = field(default=False, init=False)
    wakeup: "asyncio.Future[None] | None" = field(default=None, init=False)


_R = TypeVar("_R", bound=QueuedRequest)


class FairQueue(Generic[_R]):
    """The queue.

    try_admit: counts a request and returns True if it is admitted now. False skips it. None also holds back all others,
    so that a request that needs much gets it in the end.
    """

    def __init__(self, try_admit: "Callable[[_R], bool | None]") -> None:
        self._try_admit = try_admit
        self._requests: dict[str, list[_R]] = {}  # by key; the first key has the next turn

    async def wait(self, request: _R, deadline: float) -> None:
        """Wait until the request is admitted. deadline: a time of the event loop. Raises QueueTimeout."""
        if not self._requests and self._try_admit(request):
            request.admitted = True
            return
        self._requests.setdefault(request.key, []).append(request)
        try:
            self.admit_waiting()
            if not request.admitted:
                loop = asyncio.get_running_loop()
                request.wakeup = loop.create_future()
                await asyncio.wait({request.wakeup}, timeout=max(0.01, deadline - loop.time()))
        finally:
            self._remove(request)
        if not request.admitted:
            raise QueueTimeout

    def admit_waiting(self) -> None:
        """Admit all requests that can be, the oldest of each key in turn. Call this after something was released."""
        while request := self._admit_next():
            request.admitted = True
            self._remove(request)
            if others := self._requests.pop(request.key, None):
                self._requests[request.key] = others  # behind the other keys
            if request.wakeup:
                request.wakeup.set_result(None)

    def _admit_next(self) -> "_R | None":
        for requests in self._requests.values():
            for request in requests:
                admitted = self._try_admit(request)
                if admitted is None:
                    return None
                if admitted:
                    return request
        return None

    def _remove(self, request: _R) -> None:
        requests = self._requests.get(request.key, [])
        if request in requests:
            requests.remove(request)
            if not requests:
                del self._requests[request.key]


class FairLock:
    """A lock that keys get in turn."""

    def __init__(self) -> None:
        self._locked = False
        self._queue: FairQueue[QueuedRequest] = FairQueue(self._try_lock)

    def _try_lock(self, _: QueuedRequest) -> "bool | None":
        if self._locked:
            return None
        self._locked = True
        return True

    async def acquire(self, key: str, deadline: float) -> None:
        """Wait for the lock. Raises QueueTimeout."""
        request = QueuedRequest(key)
        try:
            await self._queue.wait(request, deadline)
        except asyncio.CancelledError:
            if request.admitted:
                self.release()
            raise

    def release(self) -> None:
        self._locked = False
        self._queue.admit_waiting()
