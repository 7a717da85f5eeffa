"""The shells of a host: runspace pools of PSRP with their pipelines, and remote shells (WinRS) with programs.

A remote shell only runs powershell.exe with a script that reads parts of the agent and a request from standard input.
These are run in a runspace of the host, as with PSRP. Source: MS-WSMV, section 3.1.4.
"""

from __future__ import annotations

import enum
import json
import logging
import threading
import time
import uuid
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing

from psrpcore import CreatePipelineEvent, PowerShell, PSRPPayload, ServerPipeline, ServerRunspacePool, StreamType
from psrpcore.types import ErrorCategory, ErrorCategoryInfo, ErrorRecord, NETException, PipelineState, PSInvocationState

from winhost.core.dataclass import dataclass
from winhost.lab.wire.served_host import ConnectionDropped, PipelineError, RemoteCommand, Runspace
from winhost.lab.wire.wsman import Request, command_not_found_fault, timeout_fault

_ENVELOPE_OVERHEAD_BYTES = 4_096
_STREAM_OVERHEAD_BYTES = 256
_TICK_S = 0.01  # interval at which a waiting Receive checks for a reboot


class Stream(enum.StrEnum):
    OUT = "stdout"
    ERROR = "stderr"


Chunk = tuple[Stream, bytes]


@dataclass(frozen=True)
class Parcel:
    """The content of one answer to Receive.

    done: the command has ended, and there is no more output; exit_code: of a process, None for a pipeline.
    """

    chunks: tuple[Chunk, ...]
    done: bool
    exit_code: int | None = None


class Outbox:
    """The output of one command. changed: callers have to hold it; alive: tells whether the machine is up."""

    def __init__(self, changed: threading.Condition, alive: Callable[[], bool]) -> None:
        self.stop = threading.Event()
        self._changed = changed
        self._alive = alive
        self._chunks: deque[Chunk] = deque()
        self._ended = False
        self._exit_code: int | None = None
        self._receivers = 0
        self._sent: tuple[str, Parcel] | None = None

    def put(self, stream: Stream, data: bytes) -> None:
        self._chunks.append((stream, data))

    def end(self, exit_code: int | None = None) -> None:
        self._ended, self._exit_code = True, exit_code

    def receive(self, request: Request) -> Parcel:
        """Return output, and wait for it at most as long as the request says.

        Raises WSManFault on timeout, ConnectionDropped if the machine goes down or another Receive comes meanwhile. A
        message that is sent again, as clients do after a read timeout, gets the same answer again, so that no output
        is lost.
        """
        deadline = time.monotonic() + request.operation_timeout
        if self._sent is not None and self._sent[0] == request.message_id:
            return self._sent[1]
        self._receivers += 1
        receiver = self._receivers
        while not self._chunks and not self._ended:
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                raise timeout_fault()
            self._changed.wait(min(seconds_left, _TICK_S))
            if self._receivers != receiver or not self._alive():
                raise ConnectionDropped
        parcel = self._take(request.max_envelope_bytes)
        self._sent = (request.message_id, parcel)
        return parcel

    def _take(self, limit_bytes: int) -> Parcel:
        bytes_left = limit_bytes - _ENVELOPE_OVERHEAD_BYTES
        chunks = [self._chunks.popleft()] if self._chunks else []
        bytes_left -= sum(map(_encoded_size, chunks))
        while self._chunks and _encoded_size(self._chunks[0]) <= bytes_left:
            chunks.append(self._chunks.popleft())
            bytes_left -= _encoded_size(chunks[-1])
        done = self._ended and not self._chunks
        return Parcel(tuple(chunks), done, self._exit_code if done else None)


def _encoded_size(chunk: Chunk) -> int:
    return len(chunk[1]) * 4 // 3 + _STREAM_OVERHEAD_BYTES


log = logging.getLogger(__name__)

_FRAGMENT_BYTES = 32_768  # the fragment size of Windows, even if the client accepts more


class Shell:
    """A shell that a client opened to run commands. alive: whether its machine is still up, in the same boot."""

    def __init__(self, shell_id: str, owner: str, alive: Callable[[], bool]) -> None:
        self.shell_id = shell_id
        self.owner = owner
        self.alive = alive
        self._changed = threading.Condition()  # guards the state of the shell
        self._outboxes: dict[str, Outbox] = {}

    def receive(self, command_id: str, request: Request) -> Parcel:
        """Return output of a command. Raises the errors of Outbox.receive."""
        with self._changed:
            return self._outbox(command_id).receive(request)

    def interrupt(self, command_id: str) -> None:
        """Ctrl-C: ask a command to stop. It ends as stopped."""
        with self._changed:
            self._outbox(command_id).stop.set()

    def terminate(self, command_id: str) -> None:
        """Stop a command, and remove its output. Clients also send this after the end of a command."""
        with self._changed:
            self._outbox(command_id).stop.set()
            del self._outboxes[self._normalize_id(command_id)]

    def close(self) -> None:
        with self._changed:
            for outbox in self._outboxes.values():
                outbox.stop.set()

    def _outbox(self, command_id: str) -> Outbox:
        outbox = self._outboxes.get(self._normalize_id(command_id))
        if outbox is None:
            raise command_not_found_fault()
        return outbox

    def _normalize_id(self, command_id: str) -> str:
        return command_id


class PowerShellShell(Shell):
    """A pool of one runspace. Output of the pool itself belongs to the command id ""."""

    def __init__(self, shell_id: str, owner: str, runspace: Runspace, alive: Callable[[], bool]) -> None:
        super().__init__(shell_id, owner, alive)
        self._runspace = runspace
        self._runspace_lock = threading.Lock()
        self._pool = ServerRunspacePool()
        self._outboxes[""] = Outbox(self._changed, alive)

    def command(self, request: Request) -> str:
        """Start a pipeline. The request has the first fragment of its script; others may follow."""
        command_id = request.content("rsp:CommandLine").get("CommandId", "")
        identifier = self._normalize_id(command_id)
        with self._changed:
            if identifier in self._outboxes:
                raise ValueError(f"CommandId {command_id} is in use")
            # The pool only accepts a CREATE_PIPELINE message of a pipeline that it knows.
            ServerPipeline(self._pool, uuid.UUID(identifier))
            self._outboxes[identifier] = Outbox(self._changed, self.alive)
            self.feed(request.data("rsp:CommandLine/rsp:Arguments"))
        return command_id

    def send(self, request: Request) -> None:
        self.feed(request.data("rsp:Send/rsp:Stream"))

    def feed(self, data: bytes) -> None:
        """Process fragments of the client, and run pipelines that are complete."""
        with self._changed:
            self._pool.receive_data(PSRPPayload(data, StreamType.default, None))
            while (event := self._pool.next_event()) is not None:
                if isinstance(event, CreatePipelineEvent):
                    pipeline = self._pool.pipeline_table[event.pipeline_id]
                    stop = self._outboxes[str(pipeline.pipeline_id)].stop
                    threading.Thread(target=self._run, args=(pipeline, event.pipeline, stop), daemon=True).start()
            self._flush()

    def close(self) -> None:
        super().close()
        self._runspace.close()

    def _normalize_id(self, command_id: str) -> str:
        return str(uuid.UUID(command_id)) if command_id else ""

    def _run(self, pipeline: ServerPipeline, powershell: PowerShell, stop: threading.Event) -> None:
        with self._runspace_lock:
            with self._changed:
                pipeline.start()
            error = None
            try:
                self._write(pipeline, self._runspace.invoke(_read_commands(powershell), stop))
            except PipelineError as caught:
                error = caught
            except Exception as caught:  # a bug of the simulated host; the client must not wait for ever
                log.exception("the simulated host failed")
                error = PipelineError(f"The simulated host failed: {caught!r}", "SimulatedHostFailed")
            with self._changed:
                if stop.is_set():
                    pipeline.stop()
                elif error is not None:
                    _fail(pipeline, error)
                else:
                    pipeline.complete()
                pipeline.close()
                outbox = self._outboxes.get(str(pipeline.pipeline_id))
                if outbox is not None:
                    outbox.end()
                self._flush()

    def _write(self, pipeline: ServerPipeline, outputs: Iterable[object]) -> None:
        is_complete = isinstance(outputs, list | tuple)
        for output in outputs:
            with self._changed:
                pipeline.write_output(output)
                if not is_complete:
                    self._flush()

    def _flush(self) -> None:
        while (payload := self._pool.data_to_send(_FRAGMENT_BYTES)) is not None:
            outbox = self._outboxes.get(str(payload.pipeline_id or ""))
            if outbox is not None:
                outbox.put(Stream.OUT, payload.data)
        self._changed.notify_all()


def _read_commands(powershell: PowerShell) -> list[RemoteCommand]:
    return [
        RemoteCommand(
            text=str(command.command_text),
            is_script=bool(command.is_script),
            parameters={str(name): value for name, value in command.parameters if name},
            arguments=tuple(value for name, value in command.parameters if not name),
        )
        for command in powershell.commands
    ]


def _fail(pipeline: ServerPipeline, error: PipelineError) -> None:
    # psrpcore has no method for failed pipelines.
    pipeline.state = PSInvocationState.Failed
    record = ErrorRecord(
        Exception=NETException(Message=error.message),
        CategoryInfo=ErrorCategoryInfo(Category=ErrorCategory[error.category], Reason="RuntimeException"),
        FullyQualifiedErrorId=error.error_id,
    )
    state = PipelineState(PipelineState=int(PSInvocationState.Failed), ExceptionAsErrorRecord=record)
    pipeline.prepare_message(state)


URI = "http://schemas.microsoft.com/wbem/wsman/1/windows/shell/cmd"

_PROGRAM, _OPTION = "powershell.exe", "-EncodedCommand"
_CHUNK_BYTES = 32_768
_CONTROL_C_EXIT = -1073741510  # STATUS_CONTROL_C_EXIT, the exit code of a process that was stopped


class _Process:
    def __init__(self, line: str, outbox: Outbox) -> None:
        self.line = line
        self.outbox = outbox
        self.input = bytearray()
        self.started = False


class RemoteShell(Shell):
    """A remote shell. Each of its processes runs in a new runspace."""

    def __init__(
        self, shell_id: str, owner: str, open_runspace: Callable[[], Runspace], alive: Callable[[], bool]
    ) -> None:
        super().__init__(shell_id, owner, alive)
        self._open_runspace = open_runspace
        self._processes: dict[str, _Process] = {}

    def command(self, request: Request) -> str:
        command_id = str(uuid.uuid4()).upper()
        parts = [request.text("rsp:CommandLine/rsp:Command"), request.text("rsp:CommandLine/rsp:Arguments")]
        with self._changed:
            self._outboxes[command_id] = Outbox(self._changed, self.alive)
            self._processes[command_id] = _Process(" ".join(parts), self._outboxes[command_id])
        return command_id

    def send(self, request: Request) -> None:
        stream = request.content("rsp:Send/rsp:Stream")
        command_id = stream.get("CommandId", "")
        with self._changed:
            self._outbox(command_id)
            process = self._processes[command_id]
            process.input += request.data("rsp:Send/rsp:Stream")
            if stream.get("End") == "true" and not process.started:
                process.started = True
                threading.Thread(target=self._run, args=(process,), daemon=True).start()

    def _run(self, process: _Process) -> None:
        message, complaint, code = b"", "", 0
        try:
            if not process.line.startswith(_PROGRAM) or _OPTION not in process.line:
                raise PipelineError("The lab runs nothing but powershell.exe with an encoded command.", "LabOneProgram")
            message_in = json.loads(process.input.decode("ascii"))
            # The agent's text and its request, as one command of a pipeline.
            command = RemoteCommand(message_in["script"], is_script=True, arguments=(message_in["request"],))
            with closing(self._open_runspace()) as runspace:
                outputs = list(runspace.invoke([command], process.outbox.stop))
            message = b"".join(b64encode(str(output).encode()) + b"\r\n" for output in outputs)
        except PipelineError as error:
            complaint, code = error.message, 1
        except Exception as error:  # a bug of the simulated host; the client must not wait for ever
            log.exception("the simulated host failed")
            complaint, code = f"The simulated host failed: {error!r}", 1
        if process.outbox.stop.is_set():
            message, complaint, code = b"", "", _CONTROL_C_EXIT
        with self._changed:
            for start in range(0, len(message), _CHUNK_BYTES):
                process.outbox.put(Stream.OUT, message[start : start + _CHUNK_BYTES])
            if complaint:
                process.outbox.put(Stream.ERROR, f"{complaint}\r\n".encode())
            process.outbox.end(code)
            self._changed.notify_all()
