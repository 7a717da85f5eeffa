"""Retries while a machine cannot be reached."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from winhost.connect.wire_errors import SessionDropped, TimedOut, Unreachable
from winhost.core.dataclass import dataclass

T = TypeVar("T")

CONNECTION_ERRORS = (Unreachable, SessionDropped, TimedOut)


@dataclass(frozen=True)
class Patience:
    """The waiting times of retries in seconds: back-off from `first` to `longest` with jitter, and one deadline."""

    deadline: float = 1800
    first: float = 1
    longest: float = 12

    def retry(
        self,
        call: Callable[[], T],
        on_retry: Callable[[Any], None],
        retried_errors: tuple[type[Exception], ...] = CONNECTION_ERRORS,
    ) -> T:
        """Repeat a call until the machine can be reached. on_retry: is called with each failed attempt of tenacity;
        retried_errors: the errors after which the call is repeated. Raises the last of them.
        """
        from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential_jitter

        end = time.monotonic() + self.deadline
        back_off = wait_exponential_jitter(multiplier=self.first, max=self.longest, jitter=self.first)
        retrying = Retrying(
            retry=retry_if_exception_type(retried_errors),
            wait=lambda attempt: min(back_off(attempt), max(0.0, end - time.monotonic())),
            stop=stop_after_delay(self.deadline),
            before_sleep=on_retry,
            reraise=True,
        )
        return retrying(call)
