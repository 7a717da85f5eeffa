"""Troubles that a test or a rehearsal plans for an endpoint: each strikes once, at the first moment that fits."""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from winhost.core.dataclass import dataclass
from winhost.lab.wire.wsman import Action, over_quota

Trouble = Callable[[], None]


class ConnectionDropped(Exception):
    """The TCP connection is to be closed without an answer."""


class HttpRefusal(Exception):
    """Answered by a bare HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


class When(enum.Enum):
    ARRIVED = "arrived"  # nothing has been done yet
    WORKED = "worked"  # all is done, the answer is about to leave
    FINISHED = "finished"  # as WORKED, of the Receive whose answer carries the end of a pipeline


@dataclass(frozen=True)
class Moment:
    """WSMan faults, such as the timeout of a Receive, are answered without a WORKED or FINISHED."""

    action: Action
    when: When


class WireTroubles:
    """`plan` what is to happen; the endpoint calls `strike` at each moment. Safe to use from any thread."""

    def __init__(self) -> None:
        self._planned: list[tuple[Moment, Trouble]] = []
        self._lock = threading.Lock()

    def plan(self, trouble: Trouble, action: Action, when: When = When.ARRIVED, *, times: int = 1) -> None:
        with self._lock:
            self._planned += [(Moment(action, when), trouble)] * times

    def strike(self, moment: Moment) -> None:
        """Raises or waits, where trouble was planned for this moment."""
        trouble = self._take(moment)
        if trouble is not None:
            trouble()

    def _take(self, moment: Moment) -> Trouble | None:
        with self._lock:
            for index, (planned, trouble) in enumerate(self._planned):
                if planned == moment:
                    del self._planned[index]
                    return trouble
        return None


def drop() -> NoReturn:
    """Close the connection without an answer."""
    raise ConnectionDropped


def refuse(status: int) -> Trouble:
    """Answer a bare HTTP status: 401 (at Action.LOGON, as a host does that has just booted), 503."""

    def trouble() -> NoReturn:
        raise HttpRefusal(status)

    return trouble


def exceed_quota() -> NoReturn:
    """Answer the WSMan fault of a user who has too many shells."""
    raise over_quota()


def delay(seconds: float) -> Trouble:
    return lambda: time.sleep(seconds)
