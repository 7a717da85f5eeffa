"""An event loop whose clock stands still while something is done, and jumps where everything waits.

Hours pass in milliseconds. What was written to a socket of the same process is read before time goes on. Where nothing
will ever happen any more, it says so: that is a deadlock.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class Deadlock(AssertionError):
    """All wait, and nobody for a time."""


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
    """Begins at 0."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def in_virtual_time(work: Coroutine[Any, Any, _T]) -> _T:
    """What it returns. Whatever else still runs then is ended."""
    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        return runner.run(work)
