"""Limit the bytes of all bodies that are held. A body is held from its first byte until an engine has answered."""

import asyncio
from collections import Counter
from dataclasses import dataclass

from .body_process import SMALL_BYTES
from .connections import Request
from .fair_line import FairLine, Waiting
from .gateway_settings import Limits


class TooSlow(Exception):
    """A body did not come in time."""


@dataclass(eq=False)
class _Room(Waiting):
    size: int


class Bodies:
    """The room for bodies. Small ones need none, because the number of requests is limited. A key has at most half of
    the room.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._most = max(limits.bodies_bytes, limits.body_bytes)
        self._most_of_a_key = max(self._most // 2, limits.body_bytes)
        self._held: Counter[str] = Counter()
        self._line: FairLine[_Room] = FairLine(self._may_begin, self._begin)

    @property
    def held(self) -> int:
        """Bytes of room that are taken."""
        return sum(self._held.values())

    def body(self, key: str, length: "int | None", until: float) -> "Body":
        """A body of this key. length: None if its client does not say; until: a time of the event loop. Raises
        WaitedTooLong.
        """
        return Body(self, key, length, until)

    def _may_begin(self, room: _Room) -> "bool | None":
        if self._held[room.key] + room.size > self._most_of_a_key:
            return False
        return True if self.held + room.size <= self._most else None

    def _begin(self, room: _Room) -> None:
        self._held[room.key] += room.size

    async def wait(self, room: _Room, until: float) -> None:
        await self._line.wait(room, until)

    def shrink(self, room: _Room, size: int) -> None:
        """Give back room that a body does not need."""
        self._held[room.key] -= room.size - size
        room.size = size
        if not self._held[room.key]:
            del self._held[room.key]
        self._line.go_on()

    @property
    def limits(self) -> Limits:
        return self._limits


class Body:
    """One body. parts: what has come of it, and later what goes to its engine."""

    def __init__(self, bodies: Bodies, key: str, length: "int | None", until: float) -> None:
        self._bodies, self._key, self._length, self._until = bodies, key, length, until
        self._room: _Room | None = None
        self.parts: list[bytes] = []

    async def __aenter__(self) -> "Body":
        if self._length is not None and self._length > SMALL_BYTES:
            await self.take_room(self._length)
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        self.leave_room()

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))

    async def take_room(self, size: int) -> None:
        self._room = _Room(self._key, size)
        try:
            await self._bodies.wait(self._room, self._until)
        except BaseException:
            self.leave_room()
            raise

    async def receive(self, request: Request) -> None:
        """Receive all of the body. One that is too long was refused before. Raises TooSlow, WaitedTooLong."""
        if self._room is None and await self._more(request, SMALL_BYTES):
            await self.take_room(self._bodies.limits.body_bytes)
        if self._room is not None:
            await self._more(request, self._bodies.limits.body_bytes)
            self._bodies.shrink(self._room, self.size)

    async def _more(self, request: Request, most: int) -> bool:
        """Wait for more than so many bytes, and tell whether they came."""
        size = self.size

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
            raise TooSlow from None

    def sent(self) -> None:
        """Drop the body: an engine has answered, so it is not needed any more."""
        self.parts.clear()
        self.leave_room()

    def leave_room(self) -> None:
        """Give back the room, if the body has any."""
        if self._room is not None and self._room.begun:
            self._bodies.shrink(self._room, 0)
        self._room = None
