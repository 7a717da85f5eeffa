"""A shell of PowerShell remoting: a runspace pool of PSRP, and the pipelines in it."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterable

from psrpcore import (
    CreatePipelineEvent,
    GetCommandMetadataEvent,
    PowerShell,
    PSRPPayload,
    ServerPipeline,
    ServerRunspacePool,
    StreamType,
)
from psrpcore.types import (
    ErrorCategory,
    ErrorCategoryInfo,
    ErrorRecord,
    NETException,
    PipelineState,
    PSInvocationState,
)

from winhost.lab.wire.outbox import Outbox, Parcel, Stream
from winhost.lab.wire.served_host import Closing, PipelineError, RemoteCommand, Runspace
from winhost.lab.wire.wsman import Request, command_not_found, malformed, read_base64

log = logging.getLogger(__name__)

_FRAGMENT_BYTES = 32_768  # what Windows sends, whatever the client could take


class PowerShellShell:
    """`alive` says whether the machine that the shell runs on is still up, in the same boot."""

    def __init__(self, shell_id: str, owner: str, runspace: Runspace, alive: Callable[[], bool]) -> None:
        self.shell_id = shell_id
        self.owner = owner
        self.alive = alive
        self._runspace = runspace
        self._runspace_is_taken = threading.Lock()
        self._pool = ServerRunspacePool()
        self._changed = threading.Condition()  # guards the pool and the outboxes
        self._outboxes: dict[uuid.UUID | None, Outbox] = {None: Outbox(self._changed, alive)}

    def command(self, request: Request) -> str:
        """Begins a pipeline: the first fragment of its script comes with it, and more may be sent."""
        command_id = request.content("rsp:CommandLine").get("CommandId", "")
        identifier = _read_id(command_id)
        with self._changed:
            if identifier in self._outboxes:
                raise malformed(f"CommandId {command_id} is in use")
            # The pool refuses the CREATE_PIPELINE message of a pipeline that it does not know yet.
            ServerPipeline(self._pool, identifier)
            self._outboxes[identifier] = Outbox(self._changed, self.alive)
            self.feed(read_base64(request.content("rsp:CommandLine/rsp:Arguments")))
        return command_id

    def send(self, request: Request) -> None:
        self.feed(read_base64(request.content("rsp:Send/rsp:Stream")))

    def feed(self, data: bytes) -> None:
        """Takes in fragments of the client; pipelines start as soon as they are complete."""
        with self._changed:
            self._pool.receive_data(PSRPPayload(data, StreamType.default, None))
            while (event := self._pool.next_event()) is not None:
                if isinstance(event, CreatePipelineEvent):
                    self._start(self._pool.pipeline_table[event.pipeline_id], event.pipeline)
                elif isinstance(event, GetCommandMetadataEvent):
                    self._end(self._pool.pipeline_table[event.pipeline_id], _unsupported("command metadata"))
            self._flush()

    def receive(self, command_id: str, request: Request) -> Parcel:
        """Output of a pipeline, or of the pool itself where `command_id` is ''. Raises as Outbox.receive does."""
        with self._changed:
            return self._outbox(command_id).receive(request)

    def interrupt(self, command_id: str) -> None:
        with self._changed:
            self._outbox(command_id).stop.set()

    def terminate(self, command_id: str) -> None:
        with self._changed:
            self._outbox(command_id).stop.set()
            del self._outboxes[_read_id(command_id)]

    def close(self) -> None:
        with self._changed:
            for outbox in self._outboxes.values():
                outbox.stop.set()
        if isinstance(self._runspace, Closing):
            self._runspace.close()

    def _outbox(self, command_id: str) -> Outbox:
        outbox = self._outboxes.get(_read_id(command_id) if command_id else None)
        if outbox is None:
            raise command_not_found()
        return outbox

    def _start(self, pipeline: ServerPipeline, asked: PowerShell) -> None:
        stop = self._outboxes[pipeline.pipeline_id].stop
        threading.Thread(target=self._run, args=(pipeline, asked, stop), daemon=True).start()

    def _run(self, pipeline: ServerPipeline, asked: PowerShell, stop: threading.Event) -> None:
        with self._runspace_is_taken:
            with self._changed:
                pipeline.start()
            error = self._invoke(pipeline, asked, stop)
            with self._changed:
                if stop.is_set():
                    self._finish(pipeline, pipeline.stop)
                else:
                    self._end(pipeline, error)

    def _invoke(self, pipeline: ServerPipeline, asked: PowerShell, stop: threading.Event) -> PipelineError | None:
        try:
            if not asked.no_input:
                raise _unsupported("pipeline input")
            self._write(pipeline, self._runspace.invoke(_read_commands(asked), stop))
        except PipelineError as error:
            return error
        except Exception as error:  # a bug of the simulated host; the client must not wait for ever
            log.exception("the simulated host failed")
            return PipelineError(f"The simulated host failed: {error!r}", "SimulatedHostFailed")
        return None

    def _write(self, pipeline: ServerPipeline, outputs: Iterable[object]) -> None:
        at_once = isinstance(outputs, list | tuple)
        for output in outputs:
            with self._changed:
                pipeline.write_output(output)
                if not at_once:
                    self._flush()

    def _end(self, pipeline: ServerPipeline, error: PipelineError | None) -> None:
        if error is None:
            self._finish(pipeline, pipeline.complete)
        else:
            self._finish(pipeline, lambda: _fail(pipeline, error))

    def _finish(self, pipeline: ServerPipeline, change_state: Callable[[], None]) -> None:
        change_state()
        pipeline.close()
        outbox = self._outboxes.get(pipeline.pipeline_id)
        if outbox is not None:
            outbox.end()
        self._flush()

    def _flush(self) -> None:
        while (payload := self._pool.data_to_send(_FRAGMENT_BYTES)) is not None:
            outbox = self._outboxes.get(payload.pipeline_id)
            if outbox is not None:
                outbox.put(Stream.OUT, payload.data)
        self._changed.notify_all()


def _read_id(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise malformed(f"CommandId {text!r} is no UUID") from None


def _read_commands(asked: PowerShell) -> list[RemoteCommand]:
    return [
        RemoteCommand(
            text=str(command.command_text),
            is_script=bool(command.is_script),
            parameters={str(name): value for name, value in command.parameters if name},
            arguments=tuple(value for name, value in command.parameters if not name),
        )
        for command in asked.commands
    ]


def _unsupported(what: str) -> PipelineError:
    return PipelineError(f"The lab does not support {what}.", "LabNotSupported", "NotImplemented")


def _fail(pipeline: ServerPipeline, error: PipelineError) -> None:
    # psrpcore has methods for completed and stopped pipelines, none for failed ones.
    pipeline.state = PSInvocationState.Failed
    record = ErrorRecord(
        Exception=NETException(Message=error.message),
        CategoryInfo=ErrorCategoryInfo(Category=ErrorCategory[error.category], Reason="RuntimeException"),
        FullyQualifiedErrorId=error.error_id,
    )
    state = PipelineState(PipelineState=int(PSInvocationState.Failed), ExceptionAsErrorRecord=record)
    pipeline.prepare_message(state)
