"""One shell: a runspace pool of PSRP, the pipelines in it, and what waits to be received."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

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

from winhost.lab.endpoint.faults import ConnectionDropped
from winhost.lab.endpoint.host import Closing, Command, PipelineError, Runspace
from winhost.lab.endpoint.wsman import command_not_found, malformed, timed_out

log = logging.getLogger(__name__)

_FRAGMENT_BYTES = 32_768  # what Windows sends, whatever the client could take
_ENVELOPE_OVERHEAD_BYTES = 4_096
_STREAM_OVERHEAD_BYTES = 256
_TICK_S = 0.01  # a waiting Receive notices a reboot as late as this


@dataclass(frozen=True)
class Parcel:
    """The content of one answer to Receive. `done`: the pipeline has ended and nothing is left."""

    chunks: tuple[bytes, ...]
    done: bool


@dataclass
class _Outbox:
    """What waits for one receiver: a pipeline's, or that of the pool itself."""

    stop: threading.Event = field(default_factory=threading.Event)
    chunks: deque[bytes] = field(default_factory=deque)
    ended: bool = False
    receivers: int = 0
    sent: tuple[str, Parcel] | None = None

    def take(self, limit_bytes: int) -> Parcel:
        room = limit_bytes - _ENVELOPE_OVERHEAD_BYTES
        taken = [self.chunks.popleft()] if self.chunks else []
        room -= sum(map(_size_as_text, taken))
        while self.chunks and _size_as_text(self.chunks[0]) <= room:
            taken.append(self.chunks.popleft())
            room -= _size_as_text(taken[-1])
        return Parcel(tuple(taken), done=self.ended and not self.chunks)


class Shell:
    """`alive` says whether the machine that the shell runs on is still up, in the same boot."""

    def __init__(self, shell_id: str, owner: str, runspace: Runspace, alive: Callable[[], bool]) -> None:
        self.shell_id = shell_id
        self.owner = owner
        self.alive = alive
        self._runspace = runspace
        self._runspace_is_taken = threading.Lock()
        self._pool = ServerRunspacePool()
        self._outboxes: dict[uuid.UUID | None, _Outbox] = {None: _Outbox()}
        self._changed = threading.Condition()  # guards the pool and the outboxes

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

    def begin(self, command_id: str, data: bytes) -> None:
        """`data` is the first fragment of the pipeline's script; more may be fed."""
        identifier = _read_id(command_id)
        with self._changed:
            if identifier in self._outboxes:
                raise malformed(f"CommandId {command_id} is in use")
            # The pool refuses the CREATE_PIPELINE message of a pipeline that it does not know yet.
            ServerPipeline(self._pool, identifier)
            self._outboxes[identifier] = _Outbox()
            self.feed(data)

    def receive(self, command_id: str, message_id: str, *, timeout: float, limit_bytes: int) -> Parcel:
        """Waits `timeout` seconds for output of a pipeline, or of the pool itself where `command_id` is ''.

        Raises the fault of WinRM when there is none by then; ConnectionDropped when the machine goes down or the same
        output is asked for anew. A message that is sent again, as clients do after a read timeout, gets its answer
        again: output taken by the first one would be lost otherwise.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            outbox = self._outbox(command_id)
            if outbox.sent is not None and outbox.sent[0] == message_id:
                return outbox.sent[1]
            self._await_output(outbox, deadline)
            parcel = outbox.take(limit_bytes)
            outbox.sent = (message_id, parcel)
            return parcel

    def _await_output(self, outbox: _Outbox, deadline: float) -> None:
        outbox.receivers += 1
        me = outbox.receivers
        while not outbox.chunks and not outbox.ended:
            left = deadline - time.monotonic()
            if left <= 0:
                raise timed_out()
            self._changed.wait(min(left, _TICK_S))
            if outbox.receivers != me or not self.alive():
                raise ConnectionDropped

    def interrupt(self, command_id: str) -> None:
        """Ctrl-C: the pipeline ends as stopped, as soon as the host heeds it."""
        with self._changed:
            self._outbox(command_id).stop.set()

    def terminate(self, command_id: str) -> None:
        """Nobody wants the output any more. Unlike Ctrl-C, this comes after the end of a pipeline, too."""
        with self._changed:
            self._outbox(command_id).stop.set()
            del self._outboxes[_read_id(command_id)]

    def close(self) -> None:
        with self._changed:
            for outbox in self._outboxes.values():
                outbox.stop.set()
        if isinstance(self._runspace, Closing):
            self._runspace.close()

    def _outbox(self, command_id: str) -> _Outbox:
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
            outbox.ended = True
        self._flush()

    def _flush(self) -> None:
        while (payload := self._pool.data_to_send(_FRAGMENT_BYTES)) is not None:
            outbox = self._outboxes.get(payload.pipeline_id)
            if outbox is not None:
                outbox.chunks.append(payload.data)
        self._changed.notify_all()


def _read_id(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise malformed(f"CommandId {text!r} is no UUID") from None


def _read_commands(asked: PowerShell) -> list[Command]:
    return [
        Command(
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


def _size_as_text(chunk: bytes) -> int:
    return len(chunk) * 4 // 3 + _STREAM_OVERHEAD_BYTES
