"""A change that may cut SSH access, on a simulated Linux: undone there unless it is asked for over a new connection."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from winhost.core.answers import Json, Key, Record
from winhost.core.dataclass import dataclass
from winhost.lab.linux.linux_errors import refused
from winhost.lab.physics.lab_clock import LabClock

State = Mapping[str, Json]


@dataclass(frozen=True)
class Unkept:
    """connection: the newest one when it was made; due: when it is undone, where the lab's clock runs at all."""

    resource: str
    key: Key
    before: State
    desired: State
    undo: Callable[[], None]
    connection: int
    due: float | None


class RevocableChanges:
    """Of one Linux. connection: of whoever asks now, counted up; none at the machine itself."""

    def __init__(self, clock: LabClock) -> None:
        self._clock = clock
        self._unkept: Unkept | None = None
        self._undone: Unkept | None = None
        self.connection = 0
        self.newest = 0

    def as_kept(self, resource: str, record: Record) -> Record:
        """What nobody has kept yet may go back to how it was."""
        unkept = self._unkept
        if unkept is None or (unkept.resource, dict(unkept.key)) != (resource, dict(record.key)):
            return record
        return Record({**record.state, **unkept.before}, record.key)

    def pass_time(self) -> None:
        """Nobody came back in time, or the machine has restarted."""
        if self._unkept is not None:
            self._unkept.undo()
            self._undone, self._unkept = self._unkept, None

    def look(self) -> None:
        if self._unkept is not None and self._unkept.due is not None and time.monotonic() >= self._unkept.due:
            self.pass_time()

    def change(
        self,
        call: Mapping[str, Any],
        before: State,
        desired: State,
        change: Callable[[State, Mapping[str, Json]], None],
    ) -> None:
        """The first call never ends well. Raises CmdletError."""
        resource, key, how = str(call["resource"]), call["key"], call.get("how") or {}
        if self._was_undone(resource, key, desired):
            raise refused("Undone", "OperationStopped", "Nobody came back within time of this change.")
        unkept = self._unkept
        if unkept is not None:
            if (unkept.resource, dict(unkept.key)) != (resource, dict(key)):
                raise refused("Awaiting", "ResourceBusy", "Another change waits to be kept or undone.")
            if unkept.desired == desired:
                self._keep(unkept, how)
                return
            self.pass_time()
        found = {name: before[name] for name in desired}
        change(desired, how)
        due = time.monotonic() + float(how.get("within") or 300) * self._clock.scale if self._clock.scale else None
        undo = lambda: change(found, {**how, "undoing": True})  # noqa: E731
        self._unkept = Unkept(resource, key, found, desired, undo, self.newest, due)
        raise _come_back()

    def _was_undone(self, resource: str, key: Key, desired: State) -> bool:
        undone, self._undone = self._undone, None
        return undone is not None and (undone.resource, dict(undone.key), undone.desired) == (
            resource,
            dict(key),
            desired,
        )

    def _keep(self, unkept: Unkept, how: Mapping[str, Json]) -> None:
        if self.connection <= unkept.connection and not (self.connection == 0 and how.get("keep")):
            raise _come_back()
        self._unkept = None


def _come_back() -> Exception:
    return refused("ComeBack", "OperationStopped", "It stands, and is undone unless the same is asked for again.")
