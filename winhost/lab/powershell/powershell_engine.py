"""A PowerShell process of this computer, in which stand-ins take the place of Windows."""

import json
import logging
import os
import queue
import secrets
import shutil
import socketserver
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from hmac import compare_digest
from importlib.resources import as_file, files
from itertools import count
from typing import IO, Any, Self

from winhost.lab.physics.host_state import HostDown
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import CmdletError, FileTime, WindowsObject
from winhost.lab.powershell.calls.cmdlet_process import CmdletProcess
from winhost.lab.powershell.standins import standins
from winhost.lab.wire.served_host import PipelineError
from winhost.model.errors import UsageError
from winhost.web.served import served

VARIABLE = "WINHOST_LAB"  # the environment variable that leads a process here


class Loopback(socketserver.ThreadingTCPServer):
    """Serves one machine while it is open. Whoever does not know its word gets nothing."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._word = secrets.token_urlsafe(24)
        self._while_open = ExitStack()
        super().__init__(("127.0.0.1", 0), _Connection)

    @property
    def address(self) -> str:
        """The address for the environment of processes that are to use it."""
        return f"{self.server_address[1]} {self._word}"

    def knows(self, word: str) -> bool:
        return compare_digest(word.encode(), self._word.encode())

    def __enter__(self) -> Self:
        self._while_open.callback(self.server_close)
        self._while_open.enter_context(served(self))
        return self

    def __exit__(self, *_: object) -> None:
        self._while_open.close()


class _Connection(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True
    server: Loopback

    def handle(self) -> None:
        loopback = self.server
        if not loopback.knows(self.rfile.readline().decode().strip("\ufeff\r\n")):
            return
        process = CmdletProcess(loopback.machine)
        try:
            while line := self.rfile.readline():
                if process.machine is not loopback.machine:
                    process.close()
                    process = CmdletProcess(loopback.machine)
                self.wfile.write(json.dumps(_answer(process, json.loads(line))).encode() + b"\n")
        except (HostDown, OSError):
            # Either way there is nobody left to answer.
            return
        finally:
            process.close()


def _answer(process: CmdletProcess, request: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return {"objects": list(map(_on_wire, process.run(request["name"], request["given"]))), "fault": None}
    except CmdletError as error:
        fault = error
    except (LookupError, StopIteration):  # what no script of ours asks for needs no error of its own
        fault = process.machine.windows_error("not-stood-in", request["name"], what="one of these values")
    return {"objects": [], "fault": {**_on_wire(fault.as_json()), "terminating": fault.terminating}}


def _on_wire(value: Any) -> Any:
    match value:
        case WindowsObject():
            return {"type": value.type, "with": {name: _on_wire(each) for name, each in value.properties.items()}}
        case FileTime():
            return {"filetime": value.ticks}
        case str():
            # A sign before each text: PowerShell 7 makes dates of texts that look like one.
            return f"={value}"
        case dict():
            return {name: _on_wire(each) for name, each in value.items()}
        case list() | tuple():
            return [_on_wire(each) for each in value]
        case _:
            return value


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
                env={n: v for n, v in os.environ.items() if n.upper() != _MODULES} | _QUIET | {VARIABLE: lab.address},
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
        """Run a script, or a command with its parameters, and return its output. Raises EngineStopped, also when
        `go_on` no longer holds; PipelineError for what ended the pipeline.
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
        """True while the process runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process, whatever it is doing."""
        # Killed outright it would leave its diagnostic pipes in the temporary folder.
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_END_S)
        self._reader.join(_END_S)
        with suppress(OSError):
            self._input.close()
