"""Simulated hosts that run the real scripts. Each runspace is a PowerShell process with stand-ins for cmdlets."""

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Self

from winhost.lab.lab_host import INVOKE, LabHost, LabRunspace
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.powershell.calls.cmdlet_process import seams
from winhost.lab.powershell.powershell_engine import EngineStopped, Loopback, PowerShellEngine, find_engine
from winhost.lab.wire.served_host import ConnectionDropped, PipelineError
from winhost.resources.windows.parts import definitions

log = logging.getLogger(__name__)


class EngineRunspace(LabRunspace):
    """Runs the agent's text in a PowerShell process. Any other script is refused."""

    def __init__(self, host: "EngineHost") -> None:
        super().__init__(host.answers)
        self._machine = host.machine
        self._boot = host.machine.boot
        self.engine = PowerShellEngine(host.loopback)
        host.machine.on_shutdown(self.close)

    def close(self) -> None:
        """End the process."""
        self.engine.close()

    @property
    def running(self) -> bool:
        """True while its process runs."""
        return self.engine.running

    def _load_parts(self, parts: Sequence[str]) -> None:
        for text in (definitions(parts), seams()):
            self._run({"script": text}, threading.Event())

    def _answer(self, request: str, stop: threading.Event) -> str:
        (answer,) = self._run({"command": INVOKE, "parameters": {"Json": request}}, stop)
        return answer

    def _run(self, message: Mapping[str, Any], stop: threading.Event) -> list[str]:
        try:
            return self.engine.ask(message, lambda: self._is_up() and not stop.is_set())
        except EngineStopped:
            self.close()
            if not self._is_up():
                raise PipelineError("The host went down.", "HostDown", "ConnectionError") from None
            raise PipelineError("The pipeline was stopped.", "PipelineStopped", "OperationStopped") from None

    def _is_up(self) -> bool:
        return self._machine.accepts_connections() and self._machine.boot == self._boot


class EngineHost(LabHost):
    """A host whose runspaces are PowerShell processes. Raises UsageError (NoEngine) when it is made."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        find_engine()
        self.loopback = Loopback(machine)

    def open_runspace(self, user: str) -> EngineRunspace:
        """Start a PowerShell process. Raises ConnectionDropped if it ends at once."""
        try:
            return EngineRunspace(self)
        except EngineStopped:
            log.error("%s ended before it answered; is it a PowerShell?", find_engine())
            raise ConnectionDropped from None

    def __enter__(self) -> Self:
        self.loopback.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.loopback.__exit__()
