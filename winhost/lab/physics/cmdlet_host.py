"""The rules of a simulated Windows for its cmdlets: which need an administrator, which take time, and that it may go
down.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from winhost.lab.physics.host_state import HostState
from winhost.lab.physics.lab_clock import LabClock
from winhost.lab.physics.lab_section import LabSection
from winhost.model.facts import Facts

_ADMINISTRATORS_MODULES = ("Hyper-V", "ServerManager", "Dism", "BitLocker")

# Lab seconds that cmdlets take; the others take next to none.
_SECONDS = {
    "Install-WindowsFeature": 60.0,
    "Uninstall-WindowsFeature": 30.0,
    "Enable-WindowsOptionalFeature": 60.0,
    "Disable-WindowsOptionalFeature": 30.0,
    "Copy-WinhostSource": 30.0,
    "Receive-WinhostSlice": 20.0,
    "msiexec.exe": 30.0,
    "nvidia-smi.exe": 1.0,
    "Start-VM": 3.0,
    "Save-VM": 10.0,
    "Disable-PnpDevice": 2.0,
    "Enable-PnpDevice": 3.0,
    "Dismount-VMHostAssignableDevice": 2.0,
    "Mount-VMHostAssignableDevice": 3.0,
}


# Of this thread: the machine that its session is on, and whether the session is still there.
_SESSION: ContextVar[tuple[object, Callable[[], bool]]] = ContextVar("session", default=(None, lambda: True))


class HostDown(Exception):
    """The host went down while this was running: there will be no answer."""


class CmdletHost(HostState):
    """Runs cmdlets, as long as it is up."""

    def __init__(self, facts: Facts, lab: LabSection | None = None, clock: LabClock | None = None) -> None:
        super().__init__(facts, lab, clock)
        self._up = True

    def accepting(self) -> bool:
        """False while it restarts: nobody listens."""
        return self._up

    @contextmanager
    def for_session(self, alive: Callable[[], bool]) -> Iterator[None]:
        """A session dies with its boot: what is asked in it reads and changes nothing of a later boot."""
        machine, outer = _SESSION.get()
        both = (lambda: outer() and alive()) if machine is self else alive
        token = _SESSION.set((self, both))
        try:
            yield
        finally:
            _SESSION.reset(token)

    def check_session(self) -> None:
        """Raises HostDown where the session of this thread is gone."""
        machine, alive = _SESSION.get()
        if machine is self and not alive():
            raise HostDown

    @contextmanager
    def reading(self, cmdlet: str, module: str) -> Iterator[None]:
        """The machine at rest for a cmdlet that changes nothing and may be asked of whoever may see its answer.

        Raises CmdletError, HostDown.
        """
        with self._lock:
            self._check_up(self.boot)
            if not self.has_module(module):
                raise self.fail("no-module", cmdlet)
            if module in _ADMINISTRATORS_MODULES and not self.lab.administrator:
                raise self.denied(cmdlet)
            yield

    @contextmanager
    def changing(self, cmdlet: str) -> Iterator[None]:
        """A cmdlet or a program that changes something: it needs an administrator and takes its time, and then has the
        machine for itself. Raises CmdletError, HostDown.
        """
        boot = self.boot
        if not self.lab.administrator:
            raise self.denied(cmdlet)
        self.clock.sleep(self.lab.seconds.get(cmdlet, _SECONDS.get(cmdlet, 0.0)))
        with self._lock:
            self._check_up(boot)
            yield

    def _check_up(self, boot: int) -> None:
        self.check_session()
        if not self._up or self.boot != boot:
            raise HostDown
