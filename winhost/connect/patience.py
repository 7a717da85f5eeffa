"""The time that winhost waits for a machine."""

from collections.abc import Callable
from typing import Any, TypeVar

from winhost.connect.wire_errors import SessionDropped, TimedOut, Unreachable
from winhost.core.dataclass import dataclass

T = TypeVar("T")


@dataclass(frozen=True)
class Patience:
    """The waiting times in seconds: back-off from `first` to `longest` with jitter, and one deadline over all of it."""

    deadline: float = 1800
    first: float = 1
    longest: float = 12

    def ask(self, ask: Callable[[], T], told: Callable[[Any], None]) -> T:
        """Ask until the machine can be reached. told: of each attempt that failed, as tenacity has it. Raises the last
        WireError.
        """
        from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

        retrying = Retrying(
            retry=retry_if_exception_type((Unreachable, SessionDropped, TimedOut)),
            wait=wait_exponential_jitter(multiplier=self.first, max=self.longest, jitter=self.first),
            stop=stop_after_delay(self.deadline),
            before_sleep=told,
            reraise=True,
        )
        return retrying(ask)
