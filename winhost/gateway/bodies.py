"""Limit the memory for bodies of requests. A body is held from its first byte until an engine has answered."""

import asyncio
from collections import Counter
from dataclasses import dataclass

from .body_process import SMALL_BYTES
from .connections import Request
from .fair_queue import FairQueue, QueuedRequest
from .gateway_settings import Limits
from .request_rules import ErrorAnswer


@dataclass(eq=False)
class _Reservation(QueuedRequest):
    size: int


class Bodies:
    """The memory for bodies. Bodies up to SMALL_BYTES are not counted, because the number of requests is limited. A key
    gets at most half of the memory.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.queue: FairQueue[_Reservation] = FairQueue(self._try_reserve)
        self._capacity = max(limits.bodies_bytes, limits.body_bytes)
        self._capacity_per_key = max(self._capacity // 2, limits.body_bytes)
        self._reserved: Counter[str] = Counter()

    @property
    def reserved_bytes(self) -> int:
        """The number of bytes that are reserved."""
        return sum(self._reserved.values())

    def _try_reserve(self, reservation: _Reservation) -> "bool | None":
        if self._reserved[reservation.key] + reservation.size > self._capacity_per_key:
            return False
        if self.reserved_bytes + reservation.size > self._capacity:
            return None
        self._reserved[reservation.key] += reservation.size
        return True

    def shrink(self, reservation: _Reservation, size: int) -> None:
        """Give back memory that a body does not need. size: the bytes that it needs."""
        self._reserved[reservation.key] -= reservation.size - size
        reservation.size = size
        if not self._reserved[reservation.key]:
            del self._reserved[reservation.key]
        self.queue.admit_waiting()


class Body:
    """The body of one request, as a context manager. parts: as received, and later as its engine gets it. Entering
    raises QueueTimeout.
    """

    def __init__(self, bodies: Bodies, key: str, length: "int | None", deadline: float) -> None:
        """length: None for a chunked body; deadline: a time of the event loop."""
        self._bodies, self._key, self._length, self._deadline = bodies, key, length, deadline
        self._reservation: _Reservation | None = None
        self.parts: list[bytes] = []

    async def __aenter__(self) -> "Body":
        if self._length is not None and self._length > SMALL_BYTES:
            await self._reserve(self._length)
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self._release()

    async def _reserve(self, size: int) -> None:
        self._reservation = _Reservation(self._key, size)
        try:
            await self._bodies.queue.wait(self._reservation, self._deadline)
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        if self._reservation is not None and self._reservation.admitted:
            self._bodies.shrink(self._reservation, 0)
        self._reservation = None

    async def receive(self, request: Request) -> None:
        """Receive all of the body. One that is too long is refused by `Framing`. Raises ErrorAnswer, QueueTimeout."""
        if self._reservation is None and await self._receive_more_than(request, SMALL_BYTES):
            await self._reserve(self._bodies.limits.body_bytes)
        if self._reservation is not None:
            await self._receive_more_than(request, self._bodies.limits.body_bytes)
            self._bodies.shrink(self._reservation, sum(map(len, self.parts)))

    async def _receive_more_than(self, request: Request, limit: int) -> bool:
        """Receive until the body has more than this many bytes, or ends. Return whether it has."""
        size = sum(map(len, self.parts))

        async def receive_parts() -> bool:
            nonlocal size
            while size <= limit:
                part = await request.next_part()
                if not part:
                    return False
                self.parts.append(part)
                size += len(part)
            return True

        if request.complete:  # needs no timeout
            return await receive_parts()
        try:
            return await asyncio.wait_for(receive_parts(), self._bodies.limits.receive)
        except asyncio.TimeoutError:  # another class before Python 3.11
            raise ErrorAnswer(408, "too-slow", "The body did not come in time.") from None

    def discard(self) -> None:
        """Drop the body, because an engine has answered, and release its memory."""
        self.parts.clear()
        self._release()
