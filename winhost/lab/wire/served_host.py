"""The interfaces behind an endpoint: a host that opens runspaces, and runspaces that run pipelines."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Protocol, runtime_checkable

from psrpcore.types import ErrorCategory

from winhost.core.dataclass import dataclass


@dataclass(frozen=True)
class RemoteCommand:
    """One command of a pipeline, as the client sent it. Names of parameters keep the client's case."""

    text: str
    is_script: bool
    parameters: Mapping[str, object] = field(default_factory=dict)
    arguments: tuple[object, ...] = ()


class PipelineError(Exception):
    """Ends the pipeline as FAILED, with this as its terminating error record.

    `category` is the name of a PowerShell ErrorCategory; ValueError if there is none of that name.
    """

    def __init__(self, message: str, error_id: str, category: str = "NotSpecified") -> None:
        super().__init__(message)
        if category not in ErrorCategory.__members__:
            raise ValueError(f"PowerShell has no error category {category!r}")
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


@runtime_checkable
class Closing(Protocol):
    """A runspace that holds something which must end with its shell, such as a process."""

    def close(self) -> None:
        """A pipeline that still runs in it ends, too. May be called again."""


class SimulatedHost(Protocol):
    @property
    def boot(self) -> int:
        """Another number after each reboot. Shells and connections of another boot are gone."""

    def accepting(self) -> bool:
        """False while the machine reboots: connections are closed without an answer."""

    def open_runspace(self, user: str) -> Runspace:
        """A fresh runspace for a user who has logged on."""


@runtime_checkable
class Wired(Protocol):
    """A host whose network may go away under it: connections go with it, shells stay."""

    @property
    def wire(self) -> int | None:
        """Another number after each time that it went; nothing while it leads nowhere."""
