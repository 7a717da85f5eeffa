"""The output of one command that waits for its client, in pieces that fit into its envelopes."""

from __future__ import annotations

import enum
import threading
import time
from collections import deque
from collections.abc import Callable

from winhost.core.dataclass import dataclass
from winhost.lab.wire.wire_troubles import ConnectionDropped
from winhost.lab.wire.wsman import Request, timed_out

_ENVELOPE_OVERHEAD_BYTES = 4_096
_STREAM_OVERHEAD_BYTES = 256
_TICK_S = 0.01  # a waiting Receive notices a reboot as late as this


class Stream(enum.StrEnum):
    OUT = "stdout"
    ERROR = "stderr"


Chunk = tuple[Stream, bytes]


@dataclass(frozen=True)
class Parcel:
    """The content of one answer to Receive. `done`: the command has ended and nothing is left.

    exit_code: of a process; none of a pipeline.
    """

    chunks: tuple[Chunk, ...]
    done: bool
    exit_code: int | None = None


class Outbox:
    """Belongs to one receiver. `changed` guards it, held by whoever calls; `alive`: is the machine still up?"""

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
        """Waits for output as long as the request says.

        Raises the fault of WinRM when there is none by then; ConnectionDropped when the machine goes down or the same
        output is asked for again. A message that is sent again, as clients do after a read timeout, gets its answer
        again: output taken by the first one would be lost otherwise.
        """
        deadline = time.monotonic() + request.operation_timeout
        if self._sent is not None and self._sent[0] == request.message_id:
            return self._sent[1]
        self._await_output(deadline)
        parcel = self._take(request.max_envelope_bytes)
        self._sent = (request.message_id, parcel)
        return parcel

    def _await_output(self, deadline: float) -> None:
        self._receivers += 1
        me = self._receivers
        while not self._chunks and not self._ended:
            left = deadline - time.monotonic()
            if left <= 0:
                raise timed_out()
            self._changed.wait(min(left, _TICK_S))
            if self._receivers != me or not self._alive():
                raise ConnectionDropped

    def _take(self, limit_bytes: int) -> Parcel:
        bytes_left = limit_bytes - _ENVELOPE_OVERHEAD_BYTES
        taken = [self._chunks.popleft()] if self._chunks else []
        bytes_left -= sum(map(_size_as_text, taken))
        while self._chunks and _size_as_text(self._chunks[0]) <= bytes_left:
            taken.append(self._chunks.popleft())
            bytes_left -= _size_as_text(taken[-1])
        done = self._ended and not self._chunks
        return Parcel(tuple(taken), done, self._exit_code if done else None)


def _size_as_text(chunk: Chunk) -> int:
    return len(chunk[1]) * 4 // 3 + _STREAM_OVERHEAD_BYTES
