"""Simulated hosts that run the real scripts: each runspace is a PowerShell process with stand-ins for Windows."""

import json
import logging
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.resources import as_file, files
from itertools import count
from typing import IO, Any, Self

from winhost.lab.lab_host import INVOKE, LabHost, LabRunspace
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.powershell.loopback import VARIABLE, Loopback
from winhost.lab.powershell.standins import seams, standins
from winhost.lab.wire import PipelineError
from winhost.lab.wire.wire_troubles import ConnectionDropped
from winhost.model.errors import UsageError
from winhost.resources.windows.scripts import agent_text

log = logging.getLogger(__name__)

CHOSEN = "WINHOST_PWSH"
_NAMES = ("pwsh", "powershell")
_LOOK_S = 0.05  # how long a reboot or a stop may go unnoticed while a script runs
_START = ("-NoLogo", "-NoProfile", "-NonInteractive", "-ExecutionPolicy", "Bypass", "-File")
_QUIET = {"POWERSHELL_TELEMETRY_OPTOUT": "1", "POWERSHELL_UPDATECHECK": "Off"}
_MODULES = "PSMODULEPATH"  # where this program was started from PowerShell 7, it would lead 5.1 to the modules of 7
_END_S = 5.0


def find_engine() -> str:
    """The program that WINHOST_PWSH names, else pwsh or powershell on PATH.

    Raises UsageError: NoEngine.
    """
    chosen = os.environ.get(CHOSEN)
    found = [path for name in ([chosen] if chosen else _NAMES) if (path := shutil.which(name))]
    if not found:
        raise UsageError(
            "NoEngine",
            what=f"{CHOSEN} names {chosen!r}, which is not a program on this computer"
            if chosen
            else "there is no PowerShell on this computer: neither pwsh nor powershell is on PATH",
            hint=f"Install PowerShell 7 (https://aka.ms/powershell), or name an engine with {CHOSEN}=PATH.",
        )
    return found[0]


class EngineStopped(Exception):
    """The process has ended, or was ended, before it answered."""


class PowerShellEngine:
    """One PowerShell process with one runspace, which reaches its host through `lab`. Raises UsageError: NoEngine."""

    def __init__(self, lab: Loopback) -> None:
        program = find_engine()
        with as_file(files(__package__) / "engine.ps1") as script:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own engine with our own script
                [program, *_START, str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**_environment(), VARIABLE: lab.address},
            )
            self._input: IO[bytes] = self._process.stdin  # type: ignore[assignment]  # asked for just above
            self._lines: queue.Queue[bytes] = queue.Queue()
            self._numbers = count(1)
            self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
            self._reader.start()
            try:
                # Answered when the script has been read: until then its file must stay.
                self.ask({"script": standins()})
            except BaseException:
                self.close()
                raise

    def _read(self, output: IO[bytes]) -> None:
        with output:
            for line in output:
                self._lines.put(line)
        self._lines.put(b"")

    def ask(self, message: Mapping[str, Any], go_on: Callable[[], bool] = lambda: True) -> list[str]:
        """What a script, or a command with its parameters, puts out.

        Raises EngineStopped, also when `go_on` no longer holds; PipelineError for what ended the pipeline.
        """
        number = next(self._numbers)
        try:
            self._input.write(json.dumps({**message, "n": number}).encode() + b"\n")
            self._input.flush()
        except (OSError, ValueError):  # gone, or closed
            raise EngineStopped from None
        # Whoever gave up on a request before this one left its answer to come: it is not the answer to this.
        while (answer := json.loads(self._line(go_on))).get("n") != number:
            log.debug("a late answer of the engine was passed over")
        if "fault" in answer:
            fault = answer["fault"]
            raise PipelineError(fault["message"], fault["code"], fault["category"])
        output: list[str] = answer["output"]
        return output

    def _line(self, go_on: Callable[[], bool]) -> bytes:
        while True:
            try:
                line = self._lines.get(timeout=_LOOK_S)
            except queue.Empty:
                if not go_on():
                    raise EngineStopped from None
                continue
            if not line:
                raise EngineStopped
            return line

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process, whatever it is doing."""
        # Killed outright it would leave its diagnostic pipes in the temporary folder.
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        with suppress(OSError):
            self._input.close()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.upper() != _MODULES} | _QUIET


class EngineRunspace(LabRunspace):
    """Runs the agent's real text in a real PowerShell; like its sibling, it takes no other script."""

    def __init__(self, host: "EngineHost") -> None:
        super().__init__(host.answers)
        self._machine = host.machine
        self._boot = host.machine.boot
        self.engine = PowerShellEngine(host.loopback)
        host.machine.when_down(self.close)

    def close(self) -> None:
        """Its process ends with it."""
        self.engine.close()

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self.engine.running

    def _prepare(self) -> None:
        for text in (agent_text(), seams()):
            self._ask({"script": text}, threading.Event())

    def _answer(self, request: str, stop: threading.Event) -> str:
        (answer,) = self._ask({"command": INVOKE, "parameters": {"Json": request}}, stop)
        return answer

    def _ask(self, message: Mapping[str, Any], stop: threading.Event) -> list[str]:
        try:
            return self.engine.ask(message, lambda: self._up() and not stop.is_set())
        except EngineStopped:
            self.close()
            if not self._up():
                raise PipelineError("The host went down.", "HostDown", "ConnectionError") from None
            raise PipelineError("The pipeline was stopped.", "PipelineStopped", "OperationStopped") from None

    def _up(self) -> bool:
        return self._machine.accepting() and self._machine.boot == self._boot


class EngineHost(LabHost):
    """A host whose runspaces are PowerShell processes, while it is open. Raises UsageError (NoEngine) at once."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        find_engine()
        self.loopback = Loopback(machine)

    def open_runspace(self, user: str) -> EngineRunspace:
        """Raises ConnectionDropped where there is none to be had: the client sees a host that went away."""
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
