"""Limit the bytes of all bodies that are held. A body is held from its first byte until an engine has answered."""

import asyncio
from collections import Counter
from dataclasses import dataclass

from .body_process import SMALL_BYTES
from .connections import Request
from .fair_line import FairLine, Waiting
from .gateway_settings import Limits
from .request_rules import ErrorAnswer


@dataclass(eq=False)
class _Room(Waiting):
    size: int


class Bodies:
    """The room for bodies. Small ones need none, because the number of requests is limited. A key has at most half of
    the room.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.line: FairLine[_Room] = FairLine(self._begin)
        self._most = max(limits.bodies_bytes, limits.body_bytes)
        self._most_of_a_key = max(self._most // 2, limits.body_bytes)
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """The number of bytes that are taken."""
        return sum(self._held.values())

    def _begin(self, room: _Room) -> "bool | None":
        if self._held[room.key] + room.size > self._most_of_a_key:
            return False
        if self.held + room.size > self._most:
            return None
        self._held[room.key] += room.size
        return True

    def shrink(self, room: _Room, size: int) -> None:
        """Give back room that a body does not need."""
        self._held[room.key] -= room.size - size
        room.size = size
        if not self._held[room.key]:
            del self._held[room.key]
        self.line.go_on()


class Body:
    """A body of this key. parts: what has come of it, and later what goes to its engine."""

    def __init__(self, bodies: Bodies, key: str, length: "int | None", until: float) -> None:
        """length: None if its client does not say; until: a time of the event loop. Entering raises WaitedTooLong."""
        self._bodies, self._key, self._length, self._until = bodies, key, length, until
        self._room: _Room | None = None
        self.parts: list[bytes] = []

    async def __aenter__(self) -> "Body":
        if self._length is not None and self._length > SMALL_BYTES:
            await self._take_room(self._length)
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self._leave_room()

    async def _take_room(self, size: int) -> None:
        self._room = _Room(self._key, size)
        try:
            await self._bodies.line.wait(self._room, self._until)
        except BaseException:
            self._leave_room()
            raise

    def _leave_room(self) -> None:
        if self._room is not None and self._room.begun:
            self._bodies.shrink(self._room, 0)
        self._room = None

    async def receive(self, request: Request) -> None:
        """Receive all of the body. One that is too long was refused before. Raises ErrorAnswer, WaitedTooLong."""
        if self._room is None and await self._more(request, SMALL_BYTES):
            await self._take_room(self._bodies.limits.body_bytes)
        if self._room is not None:
            await self._more(request, self._bodies.limits.body_bytes)
            self._bodies.shrink(self._room, sum(map(len, self.parts)))

    async def _more(self, request: Request, most: int) -> bool:
        """Wait for more than this many bytes, and tell whether they came."""
        size = sum(map(len, self.parts))

        async def received() -> bool:
            nonlocal size
            while size <= most:
                part = await request.more()
                if not part:
                    return False
                self.parts.append(part)
                size += len(part)
            return True

        if request.whole:  # all of it has come, so there is nothing to wait for
            return await received()
        try:
            return await asyncio.wait_for(received(), self._bodies.limits.receive)
        except asyncio.TimeoutError:  # another class before Python 3.11
            raise ErrorAnswer(408, "too-slow", "The body did not come in time.") from None

    def sent(self) -> None:
        """Drop the body: an engine has answered, so nobody needs it any more."""
        self.parts.clear()
        self._leave_room()
