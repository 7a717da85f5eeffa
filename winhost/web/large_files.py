"""Downloads of large files. They are written piece by piece, and continue where the last attempt ended."""

import os
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import IO

from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes
from winhost.web.http_client import NotAnswered, OpenAnswer, retry_after_s

_MAX_IDLE_ATTEMPTS = 5  # in a row without a new byte
RETRY_STATUSES = (429, 500, 502, 503, 504)
_MAX_PAUSE_S = 120.0

Open = Callable[[Bytes], AbstractContextManager[OpenAnswer]]
"""Request a file from an offset on. Raises NotAnswered."""

OnProgress = Callable[[Bytes, Bytes], None]
"""Called with the bytes that are present, and the size."""


def total_length(answer: OpenAnswer) -> Bytes | None:
    """Return the length of the whole file, of which this answer may have the end; None if it is not announced."""
    span = re.fullmatch(r"bytes (?:\d{1,15}-\d{1,15}|\*)/(\d{1,15})", answer.headers.get("content-range", ""))
    length = answer.headers.get("content-length", "") if answer.status == 200 else span[1] if span else ""
    return int(length) if re.fullmatch(r"\d{1,15}", length) else None


def resume_download(
    file: IO[bytes], base: Bytes, present: Bytes, size: Bytes | None, open_at: Open, on_progress: OnProgress
) -> None:
    """Download the missing part of `size` bytes, which begin at `base` of a file. The caller has to check the hash.

    present: the bytes that the file has already; size: None for as many as the server announces, which are then the
    last ones of the file. Raises NotAnswered and OSError.
    """
    progress, idle_attempts = _Progress(present, size), 0
    while progress.size is None or progress.bytes < progress.size:
        before, pause = progress.bytes, 0.0
        try:
            with open_at(progress.bytes) as answer:
                _write(file, base, progress, answer, on_progress)
        except NotAnswered as error:
            final, pause = (error.final, error.pause) if isinstance(error, _Refused) else (False, 0.0)
            idle_attempts = 0 if progress.bytes > before else idle_attempts + 1
            if final or idle_attempts == _MAX_IDLE_ATTEMPTS:
                raise
            time.sleep(min(_MAX_PAUSE_S, max(pause, 2.0**idle_attempts - 1)))
    if size is None:
        file.truncate(base + progress.bytes)
    file.flush()
    os.fsync(file.fileno())


@dataclass
class _Progress:
    """The bytes that are present after all attempts, and the size."""

    bytes: Bytes
    size: Bytes | None


class _Refused(NotAnswered):
    """The server refuses an attempt. pause: seconds until the next one; final: no other attempt can succeed."""

    def __init__(self, reason: str, pause: float = 0.0, *, final: bool) -> None:
        super().__init__(reason)
        self.pause, self.final = pause, final


def _write(file: IO[bytes], base: Bytes, progress: _Progress, answer: OpenAnswer, on_progress: OnProgress) -> None:
    size = total_length(answer) if progress.size is None else progress.size
    if progress.size is None and answer.status == 416 and size is not None:
        if progress.bytes == size:
            progress.size = size
        else:
            progress.bytes = 0  # the file on the server has changed
        return
    progress.bytes = _start_offset(answer, progress.bytes)
    if size is None:
        raise _Refused("does not say how long it is", final=True)
    progress.size = size
    file.seek(base + progress.bytes)
    for piece in answer.pieces():
        if progress.bytes + len(piece) > size:
            raise _Refused("sends more than it said", final=True)
        file.write(piece)
        progress.bytes += len(piece)
        on_progress(progress.bytes, size)
    if progress.bytes < size:
        raise NotAnswered(f"ended after {progress.bytes:,} of {size:,} bytes")


def _start_offset(answer: OpenAnswer, offset: Bytes) -> Bytes:
    """Return the offset at which the answer begins: 0 if the server ignores ranges. Raises _Refused."""
    if answer.status == 200:
        return 0
    if answer.status == 206 and answer.headers.get("content-range", "").startswith(f"bytes {offset}-"):
        return offset
    if answer.status in RETRY_STATUSES:
        raise _Refused(f"answers {answer.status}", float(retry_after_s(answer.headers) or 0), final=False)
    raise _Refused(f"answers {answer.status}", final=True)
