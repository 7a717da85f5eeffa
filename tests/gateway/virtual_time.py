"""An event loop in virtual time: its clock stands still while code runs, and jumps when everything waits. Hours pass
in milliseconds. Bytes that were written to a socket of the same process are read before the clock jumps. If nothing
can ever happen, it raises Deadlock.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class Deadlock(AssertionError):
    """Every task waits, and none of them for a time."""


class _Jumping(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise Deadlock
            self.now += max(0.0, timeout)
        return ready


class VirtualTime(asyncio.SelectorEventLoop):
    """An event loop whose clock starts at 0."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def in_virtual_time(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine in virtual time, and return its result. Tasks that still run then are cancelled."""
    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        return runner.run(work)
