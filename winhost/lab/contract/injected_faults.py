"""Trouble that a test or a rehearsal orders from a simulated host, call by call."""

import threading
from dataclasses import replace

from winhost.core.dataclass import dataclass
from winhost.lab.physics.windows_errors import CmdletError


@dataclass(frozen=True)
class InjectedFault:
    """Meets the next `times` calls of this resource and verb. `seconds`: lab seconds that each takes longer.

    `error` is raised instead of the change, or after it where `changed` says so; without one the call is only slow.
    """

    resource: str
    verb: str
    error: CmdletError | None = None
    seconds: float = 0.0
    changed: bool = False
    times: int = 1


class InjectedFaults:
    """The faults still to come. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._coming: list[InjectedFault] = []

    def add(self, fault: InjectedFault) -> None:
        """After those that were ordered before."""
        with self._lock:
            self._coming.append(fault)

    def take(self, resource: str, verb: str, *, changed: bool) -> InjectedFault | None:
        """The next for this resource and verb, if it meets the call at this moment; it counts as met."""
        with self._lock:
            mine = [i for i, fault in enumerate(self._coming) if (fault.resource, fault.verb) == (resource, verb)]
            if not mine or self._coming[mine[0]].changed is not changed:
                return None
            fault = self._coming[mine[0]]
            self._coming[mine[0] : mine[0] + 1] = [replace(fault, times=fault.times - 1)] if fault.times > 1 else []
            return fault
