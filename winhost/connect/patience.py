"""The time that winhost waits for a machine."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from winhost.connect.wire_errors import SessionDropped, TimedOut, Unreachable
from winhost.core.dataclass import dataclass

T = TypeVar("T")

NOT_REACHED = (Unreachable, SessionDropped, TimedOut)


@dataclass(frozen=True)
class Patience:
    """The waiting times in seconds: back-off from `first` to `longest` with jitter, and one deadline over all of it."""

    deadline: float = 1800
    first: float = 1
    longest: float = 12

    def ask(
        self, ask: Callable[[], T], told: Callable[[Any], None], lost: tuple[type[Exception], ...] = NOT_REACHED
    ) -> T:
        """Ask until the machine can be reached. told: of each attempt that failed, as tenacity has it; lost: the errors
        that mean that it cannot be reached yet. Raises the last of them.
        """
        from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

        end = time.monotonic() + self.deadline
        back_off = wait_exponential_jitter(multiplier=self.first, max=self.longest, jitter=self.first)
        retrying = Retrying(
            retry=retry_if_exception_type(lost),
            wait=lambda attempt: min(back_off(attempt), max(0.0, end - time.monotonic())),
            stop=stop_after_delay(self.deadline),
            before_sleep=told,
            reraise=True,
        )
        return retrying(ask)
