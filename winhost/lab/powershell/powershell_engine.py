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
from winhost.web.server import run_server

LAB_VARIABLE = "WINHOST_LAB"  # the environment variable with the address and token of the lab


class Loopback(socketserver.ThreadingTCPServer):
    """Serves one machine to PowerShell processes that know its token, while it is open."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._token = secrets.token_urlsafe(24)
        self._while_open = ExitStack()
        super().__init__(("127.0.0.1", 0), _Connection)

    @property
    def address(self) -> str:
        """The value of the environment variable for processes that use it."""
        return f"{self.server_address[1]} {self._token}"

    def accepts_token(self, token: str) -> bool:
        return compare_digest(token.encode(), self._token.encode())

    def __enter__(self) -> Self:
        self._while_open.callback(self.server_close)
        self._while_open.enter_context(run_server(self))
        return self

    def __exit__(self, *_: object) -> None:
        self._while_open.close()


class _Connection(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True
    server: Loopback

    def handle(self) -> None:
        loopback = self.server
        if not loopback.accepts_token(self.rfile.readline().decode().strip("\ufeff\r\n")):
            return
        process = CmdletProcess(loopback.machine)
        try:
            while line := self.rfile.readline():
                if process.machine is not loopback.machine:
                    process.close()
                    process = CmdletProcess(loopback.machine)
                self.wfile.write(json.dumps(_answer(process, json.loads(line))).encode() + b"\n")
        except (HostDown, OSError):
            # The process or the host is gone.
            return
        finally:
            process.close()


def _answer(process: CmdletProcess, request: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return {"objects": list(map(_encode, process.run(request["name"], request["given"]))), "fault": None}
    except CmdletError as error:
        fault = error
    except (LookupError, StopIteration):  # values that no script of winhost uses
        fault = process.machine.windows_error("not-stood-in", request["name"], what="one of these values")
    return {"objects": [], "fault": {**_encode(fault.as_json()), "terminating": fault.terminating}}


def _encode(value: Any) -> Any:
    match value:
        case WindowsObject():
            return {"type": value.type, "with": {name: _encode(each) for name, each in value.properties.items()}}
        case FileTime():
            return {"filetime": value.ticks}
        case str():
            # With a prefix, because PowerShell 7 converts texts that look like dates.
            return f"={value}"
        case dict():
            return {name: _encode(each) for name, each in value.items()}
        case list() | tuple():
            return [_encode(each) for each in value]
        case _:
            return value


log = logging.getLogger(__name__)

ENGINE_VARIABLE = "WINHOST_PWSH"
_ENGINE_NAMES = ("pwsh", "powershell")
_POLL_S = 0.05  # interval at which a running script checks for a reboot or a stop
_START_OPTIONS = ("-NoLogo", "-NoProfile", "-NonInteractive", "-ExecutionPolicy", "Bypass", "-File")
_QUIET_VARIABLES = {"POWERSHELL_TELEMETRY_OPTOUT": "1", "POWERSHELL_UPDATECHECK": "Off"}
_MODULE_PATH = "PSMODULEPATH"  # not inherited: that of PowerShell 7 makes Windows PowerShell load modules of 7
_EXIT_TIMEOUT_S = 5.0


def find_engine() -> str:
    """Return the program that WINHOST_PWSH names, else pwsh or powershell on PATH. Raises UsageError: NoEngine."""
    chosen = os.environ.get(ENGINE_VARIABLE)
    engines = [path for name in ([chosen] if chosen else _ENGINE_NAMES) if (path := shutil.which(name))]
    if not engines:
        raise UsageError(
            "NoEngine",
            what=f"{ENGINE_VARIABLE} names {chosen!r}, which is not a program on this computer"
            if chosen
            else "there is no PowerShell on this computer: neither pwsh nor powershell is on PATH",
            hint=f"Install PowerShell 7 (https://aka.ms/powershell), or name an engine with {ENGINE_VARIABLE}=PATH.",
        )
    return engines[0]


class EngineStopped(Exception):
    """The process ended before it answered."""


class PowerShellEngine:
    """One PowerShell process with one runspace. lab: serves its host. Raises UsageError: NoEngine."""

    def __init__(self, lab: Loopback) -> None:
        program = find_engine()
        with as_file(files(__package__) / "engine.ps1") as script:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own engine with our own script
                [program, *_START_OPTIONS, str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={n: v for n, v in os.environ.items() if n.upper() != _MODULE_PATH}
                | _QUIET_VARIABLES
                | {LAB_VARIABLE: lab.address},
            )
            self._input: IO[bytes] = self._process.stdin  # type: ignore[assignment]  # asked for just above
            self._lines: queue.Queue[bytes] = queue.Queue()
            self._numbers = count(1)
            self._reader = threading.Thread(target=self._read_output, args=(self._process.stdout,), daemon=True)
            self._reader.start()
            try:
                # Wait for an answer: the script's file has to exist until it was read.
                self.ask({"script": standins()})
            except BaseException:
                self.close()
                raise

    def _read_output(self, output: IO[bytes]) -> None:
        with output:
            for line in output:
                self._lines.put(line)
        self._lines.put(b"")

    def ask(self, message: Mapping[str, Any], should_continue: Callable[[], bool] = lambda: True) -> list[str]:
        """Run a script, or a command with its parameters, and return its output.

        Raises EngineStopped, also when `should_continue` returns False; PipelineError if the pipeline fails.
        """
        number = next(self._numbers)
        try:
            self._input.write(json.dumps({**message, "n": number}).encode() + b"\n")
            self._input.flush()
        except (OSError, ValueError):  # gone, or closed
            raise EngineStopped from None
        # Skip late answers to earlier requests that were given up.
        while (answer := json.loads(self._read_line(should_continue))).get("n") != number:
            log.debug("a late answer of the engine was skipped")
        if "fault" in answer:
            fault = answer["fault"]
            raise PipelineError(fault["message"], fault["code"], fault["category"])
        output: list[str] = answer["output"]
        return output

    def _read_line(self, should_continue: Callable[[], bool]) -> bytes:
        while True:
            try:
                line = self._lines.get(timeout=_POLL_S)
            except queue.Empty:
                if not should_continue():
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
        """End the process."""
        # Terminated first: a killed process leaves its diagnostic pipes in the temporary folder.
        self._process.terminate()
        try:
            self._process.wait(_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_EXIT_TIMEOUT_S)
        self._reader.join(_EXIT_TIMEOUT_S)
        with suppress(OSError):
            self._input.close()
