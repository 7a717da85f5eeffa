"""Windows' remote shell (WinRS): programs with a standard input, two outputs and an exit code.

The one program is powershell.exe with a text that reads parts of an agent and a request from the standard input;
what it would do with them is asked of the host, as in a runspace of PowerShell remoting. MS-WSMV, section 3.1.4.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from base64 import b64encode
from collections.abc import Callable

from winhost.lab.wire.outbox import Outbox, Parcel, Stream
from winhost.lab.wire.served_host import Closing, PipelineError, RemoteCommand, Runspace
from winhost.lab.wire.wsman import Request, command_not_found, read_base64

log = logging.getLogger(__name__)

URI = "http://schemas.microsoft.com/wbem/wsman/1/windows/shell/cmd"

_PROGRAM, _OPTION = "powershell.exe", "-EncodedCommand"
_CHUNK_BYTES = 32_768
_ENDED = -1073741510  # STATUS_CONTROL_C_EXIT: of a process that somebody ended


class _Process:
    def __init__(self, line: str, outbox: Outbox) -> None:
        self.line = line
        self.outbox = outbox
        self.input = bytearray()
        self.begun = False


class RemoteShell:
    """`open_runspace` makes a fresh one for each process. Otherwise as PowerShellShell."""

    def __init__(
        self, shell_id: str, owner: str, open_runspace: Callable[[], Runspace], alive: Callable[[], bool]
    ) -> None:
        self.shell_id = shell_id
        self.owner = owner
        self.alive = alive
        self._open_runspace = open_runspace
        self._processes: dict[str, _Process] = {}
        self._changed = threading.Condition()

    def command(self, request: Request) -> str:
        command_id = str(uuid.uuid4()).upper()
        words = [request.text("rsp:CommandLine/rsp:Command"), request.text("rsp:CommandLine/rsp:Arguments")]
        with self._changed:
            self._processes[command_id] = _Process(" ".join(words), Outbox(self._changed, self.alive))
        return command_id

    def send(self, request: Request) -> None:
        stream = request.content("rsp:Send/rsp:Stream")
        with self._changed:
            process = self._process(stream.get("CommandId", ""))
            process.input += read_base64(stream)
            if stream.get("End") == "true" and not process.begun:
                process.begun = True
                threading.Thread(target=self._run, args=(process,), daemon=True).start()

    def receive(self, command_id: str, request: Request) -> Parcel:
        with self._changed:
            return self._process(command_id).outbox.receive(request)

    def interrupt(self, command_id: str) -> None:
        with self._changed:
            self._process(command_id).outbox.stop.set()

    def terminate(self, command_id: str) -> None:
        with self._changed:
            self._process(command_id).outbox.stop.set()
            del self._processes[command_id]

    def close(self) -> None:
        """Ends what still runs: unlike a pipeline, a process has no say in it."""
        with self._changed:
            for process in self._processes.values():
                process.outbox.stop.set()

    def _process(self, command_id: str) -> _Process:
        process = self._processes.get(command_id)
        if process is None:
            raise command_not_found()
        return process

    def _run(self, process: _Process) -> None:
        message, complained, code = b"", "", 0
        try:
            message = self._message(process)
        except PipelineError as error:
            complained, code = error.message, 1
        except Exception as error:  # a bug of the simulated host; the client must not wait for ever
            log.exception("the simulated host failed")
            complained, code = f"The simulated host failed: {error!r}", 1
        if process.outbox.stop.is_set():
            message, complained, code = b"", "", _ENDED
        with self._changed:
            for start in range(0, len(message), _CHUNK_BYTES):
                process.outbox.put(Stream.OUT, message[start : start + _CHUNK_BYTES])
            if complained:
                process.outbox.put(Stream.ERROR, f"{complained}\r\n".encode())
            process.outbox.end(code)
            self._changed.notify_all()

    def _message(self, process: _Process) -> bytes:
        command = _read(process)
        runspace = self._open_runspace()
        try:
            outputs = list(runspace.invoke([command], process.outbox.stop))
        finally:
            if isinstance(runspace, Closing):
                runspace.close()
        return b"".join(b64encode(str(output).encode()) + b"\r\n" for output in outputs)


def _read(process: _Process) -> RemoteCommand:
    """The agent's text and its request, as one command of a pipeline."""
    if not process.line.startswith(_PROGRAM) or _OPTION not in process.line:
        raise PipelineError("The lab runs nothing but powershell.exe with an encoded command.", "LabOneProgram")
    try:
        sent = json.loads(process.input.decode("ascii"))
        script, request = sent["script"], sent["request"]
    except (ValueError, KeyError, TypeError) as error:
        raise PipelineError(f"The input is no line of JSON with a script and a request: {error}", "LabInput") from None
    return RemoteCommand(script, is_script=True, arguments=(request,))
