"""How the stand-ins reach their simulated host: JSON lines over a connection on loopback, one for each process."""

import json
import secrets
import socketserver
from collections.abc import Mapping
from contextlib import ExitStack
from hmac import compare_digest
from typing import Any, Self

from winhost.lab.physics.cmdlet_host import HostDown
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import CmdletError
from winhost.lab.physics.windows_objects import FileTime, WindowsObject
from winhost.lab.powershell.calls.cmdlet_process import CmdletProcess
from winhost.web.served import served

VARIABLE = "WINHOST_LAB"  # the environment variable that leads a process here


class Loopback:
    """Serves one machine while it is open. Whoever does not know its word gets nothing."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._word = secrets.token_urlsafe(24)
        self._server = _Server(self)
        self._open = ExitStack()

    @property
    def address(self) -> str:
        """For the environment of processes that are to use it."""
        return f"{self._server.server_address[1]} {self._word}"

    def knows(self, word: str) -> bool:
        return compare_digest(word.encode(), self._word.encode())

    def __enter__(self) -> Self:
        self._open.enter_context(self._server)
        self._open.enter_context(served(self._server))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, loopback: Loopback) -> None:
        self.loopback = loopback
        super().__init__(("127.0.0.1", 0), _Connection)


class _Connection(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True
    server: _Server

    def handle(self) -> None:
        loopback = self.server.loopback
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
        found = process.run(request["name"], request["given"])
    except CmdletError as error:
        return {"objects": [], "fault": {**_on_wire(error.as_json()), "terminating": error.terminating}}
    return {"objects": [_on_wire(each) for each in found], "fault": None}


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
