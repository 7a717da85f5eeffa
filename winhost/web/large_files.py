"""Large files whose size and hash are known before: written piece by piece, and on from where an attempt ended."""

import os
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import IO

from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes
from winhost.web.asking import NotAnswered, OpenAnswer

_ATTEMPTS = 5  # in a row that bring nothing
BUSY = (429, 500, 502, 503, 504)
_LONGEST_PAUSE_S = 120.0

Open = Callable[[Bytes], AbstractContextManager[OpenAnswer]]
"""Asks for a file from a byte on. Raises NotAnswered."""

Tell = Callable[[Bytes, Bytes], None]
"""Told how many bytes of how many there are by now."""


def told_length(answer: OpenAnswer) -> Bytes | None:
    """The length of the whole file, of which this may be the end."""
    span = re.fullmatch(r"bytes (?:\d{1,15}-\d{1,15}|\*)/(\d{1,15})", answer.headers.get("content-range", ""))
    told = answer.headers.get("content-length", "") if answer.status == 200 else span[1] if span else ""
    return int(told) if re.fullmatch(r"\d{1,15}", told) else None


def bring(file: IO[bytes], base: Bytes, have: Bytes, size: Bytes | None, open_at: Open, tell: Tell) -> None:
    """The rest of `size` bytes that begin at `base` of a file, of which it has some. size: None for as many as the
    server says, which end the file. Raises NotAnswered and OSError.

    The hash is for the caller to check.
    """
    there, idle = _There(have, size), 0
    while there.size is None or there.bytes < there.size:
        before, pause = there.bytes, 0.0
        try:
            with open_at(there.bytes) as answer:
                _write(file, base, there, answer, tell)
        except NotAnswered as error:
            final, pause = (error.final, error.pause) if isinstance(error, _Refused) else (False, 0.0)
            idle = 0 if there.bytes > before else idle + 1
            if final or idle == _ATTEMPTS:
                raise
            time.sleep(min(_LONGEST_PAUSE_S, max(pause, 2.0**idle - 1)))
    if size is None:
        file.truncate(base + there.bytes)
    file.flush()
    os.fsync(file.fileno())


@dataclass
class _There:
    """The bytes that have come, whatever became of the attempt, and how many there are to be."""

    bytes: Bytes
    size: Bytes | None


class _Refused(NotAnswered):
    """final: another attempt will not do."""

    def __init__(self, why: str, pause: float = 0.0, *, final: bool) -> None:
        super().__init__(why)
        self.pause, self.final = pause, final


def _write(file: IO[bytes], base: Bytes, there: _There, answer: OpenAnswer, tell: Tell) -> None:
    size = told_length(answer) if there.size is None else there.size
    if there.size is None and answer.status == 416 and size is not None:
        if there.bytes == size:
            there.size = size
        else:
            there.bytes = 0  # another file, or another one by now
        return
    there.bytes = _begin(answer, there.bytes)
    if size is None:
        raise _Refused("does not say how long it is", final=True)
    there.size = size
    file.seek(base + there.bytes)
    for piece in answer.pieces():
        if there.bytes + len(piece) > size:
            raise _Refused("sends more than it said", final=True)
        file.write(piece)
        there.bytes += len(piece)
        tell(there.bytes, size)
    if there.bytes < size:
        raise NotAnswered(f"ended after {there.bytes:,} of {size:,} bytes")


def _begin(answer: OpenAnswer, begin: Bytes) -> Bytes:
    """The offset at which the answer begins. A server that ignores ranges sends all of it again."""
    if answer.status == 200:
        return 0
    if answer.status == 206 and answer.headers.get("content-range", "").startswith(f"bytes {begin}-"):
        return begin
    if answer.status in BUSY:
        after = answer.headers.get("retry-after", "")
        pause = float(after) if re.fullmatch(r"\d{1,5}", after) else 0.0
        raise _Refused(f"answers {answer.status}", pause, final=False)
    raise _Refused(f"answers {answer.status}", final=True)
