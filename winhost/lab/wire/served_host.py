"""The interfaces behind an endpoint (a host that opens runspaces, which run pipelines), and planned wire troubles."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import NoReturn, Protocol

from winhost.core.dataclass import dataclass
from winhost.lab.wire.wsman import Action, quota_fault


@dataclass(frozen=True)
class RemoteCommand:
    """One command of a pipeline, as the client sent it. Names of parameters keep the client's case."""

    text: str
    is_script: bool
    parameters: Mapping[str, object] = field(default_factory=dict)
    arguments: tuple[object, ...] = ()


class PipelineError(Exception):
    """Ends the pipeline as failed with this terminating error. category: a PowerShell ErrorCategory."""

    def __init__(self, message: str, error_id: str, category: str = "NotSpecified") -> None:
        super().__init__(message)
        self.message = message
        self.error_id = error_id
        self.category = category


class Runspace(Protocol):
    """An open runspace pool, which keeps state between pipelines. It runs one pipeline at a time."""

    def invoke(self, commands: Sequence[RemoteCommand], stop: threading.Event) -> Iterable[object]:
        """Run a pipeline, and return its output objects. Raises PipelineError.

        A list or tuple is sent together with the end of the pipeline, other iterables object by object. `stop` is set
        when the client stops the pipeline or the shell ends.
        """

    def close(self) -> None:
        """Close the pool, and end its pipeline. May be called again."""


class SimulatedHost(Protocol):
    @property
    def boot(self) -> int:
        """The number of this boot. Shells and connections end with their boot."""

    def accepts_connections(self) -> bool:
        """Tell whether the machine is up. During a reboot, connections are closed without an answer."""

    @property
    def network_epoch(self) -> int | None:
        """A number that changes each time that the network breaks; None while the host cannot be reached.

        Connections break with the network, shells survive.
        """

    def open_runspace(self, user: str) -> Runspace:
        """Open a new runspace pool for a user who has logged on."""


Trouble = Callable[[], None]


class ConnectionDropped(Exception):
    """The TCP connection has to be closed without an answer."""


class HttpRefusal(Exception):
    """The answer is an HTTP status without a body."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


class Phase(enum.Enum):
    """A phase of a request."""

    ARRIVED = "arrived"  # before it is processed
    WORKED = "worked"  # processed, before the answer is sent
    FINISHED = "finished"  # as WORKED, for the Receive whose answer has the end of a pipeline


@dataclass(frozen=True)
class Moment:
    """A phase of a request with this action. Requests that are answered with a WSMan fault only have ARRIVED."""

    action: Action
    phase: Phase


class WireTroubles:
    """Troubles that tests and demos plan. The endpoint calls `strike` at each moment. It is thread-safe."""

    def __init__(self) -> None:
        self._planned: list[tuple[Moment, Trouble]] = []
        self._lock = threading.Lock()

    def plan(self, trouble: Trouble, action: Action, phase: Phase = Phase.ARRIVED, *, times: int = 1) -> None:
        with self._lock:
            self._planned += [(Moment(action, phase), trouble)] * times

    def strike(self, moment: Moment) -> None:
        """Run the first trouble that is planned for this moment, which raises or waits, and remove it."""
        with self._lock:
            planned = next((each for each in self._planned if each[0] == moment), None)
            if planned is not None:
                self._planned.remove(planned)
        if planned is not None:
            planned[1]()


def drop() -> NoReturn:
    """Raise ConnectionDropped."""
    raise ConnectionDropped


def refuse(status: int) -> Trouble:
    """Return a trouble that answers with this HTTP status, such as 503, or 401 for Action.LOGON after a boot."""

    def trouble() -> NoReturn:
        raise HttpRefusal(status)

    return trouble


def exceed_quota() -> NoReturn:
    """Raise the WSMan fault of a user who has too many shells."""
    raise quota_fault()
