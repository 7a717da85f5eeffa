"""The interfaces behind an endpoint: a host that opens runspaces, runspaces that run pipelines, and the troubles that a
test or a rehearsal plans: each strikes once, at the first moment that fits.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import NoReturn, Protocol

from winhost.core.dataclass import dataclass
from winhost.lab.wire.wsman import Action, over_quota


@dataclass(frozen=True)
class RemoteCommand:
    """One command of a pipeline, as the client sent it. Names of parameters keep the client's case."""

    text: str
    is_script: bool
    parameters: Mapping[str, object] = field(default_factory=dict)
    arguments: tuple[object, ...] = ()


class PipelineError(Exception):
    """Ends the pipeline as FAILED, with this as its terminating error record. category: a PowerShell ErrorCategory."""

    def __init__(self, message: str, error_id: str, category: str = "NotSpecified") -> None:
        super().__init__(message)
        self.message = message
        self.error_id = error_id
        self.category = category


class Runspace(Protocol):
    """One opened runspace pool: state lives here from pipeline to pipeline. One pipeline runs at a time."""

    def invoke(self, commands: Sequence[RemoteCommand], stop: threading.Event) -> Iterable[object]:
        """Output objects of the pipeline, or raise PipelineError.

        A list or tuple reaches the client together with the end of the pipeline; what is yielded is sent as it comes.
        `stop` is set when the client stops the pipeline or the shell goes; a pipeline that ignores it runs on.
        """

    def close(self) -> None:
        """It ends with its shell, and so does a pipeline that still runs in it. May be called again."""


class SimulatedHost(Protocol):
    @property
    def boot(self) -> int:
        """Another number after each reboot. Shells and connections of another boot are gone."""

    def accepts_connections(self) -> bool:
        """False while the machine reboots: connections are closed without an answer."""

    @property
    def network_epoch(self) -> int | None:
        """The network may go away: another number after each time that it did, nothing while it leads nowhere.
        Connections go with it, shells stay.
        """

    def open_runspace(self, user: str) -> Runspace:
        """A fresh runspace for a user who has logged on."""


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
        with self._lock:
            found = next((each for each in self._planned if each[0] == moment), None)
            if found is not None:
                self._planned.remove(found)
        if found is not None:
            found[1]()


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
