"""Parts of files, read in parallel and given in order, through a few buffers that are used again."""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fcntl import F_SETFL, fcntl
from pathlib import Path
from typing import Any

from winhost_weights.container import PAGE, padded

THREADS = 8  # 4 and 16 were slower on the disk of docs/evidence/packed-weights.md
PIECE = 8 << 20  # of one call
MEMORY_SPEED = 2e9  # bytes a second: faster than most disks, slower than memory


@dataclass(frozen=True)
class Extent:
    """offset: a multiple of PAGE."""

    path: Path
    offset: int
    size: int


@dataclass
class Slot:
    """A buffer that its user gives back: `done` waits for a use that may still run, then the buffer is `free`."""

    buffer: Any
    view: memoryview
    free: threading.Event = field(default_factory=threading.Event)
    done: Callable[[], object] = lambda: None


class Reader:
    """make: returns a buffer of so many bytes that starts on a page, and a view of it. keep: read through the page
    cache, so that the next reader finds the files there; otherwise around it, where the file system can.

    threads: eight around the page cache, unless said. Through it, one reads, because eight that wait for a disk there
    take five times its CPU time (docs/evidence/packed-weights.md), and a second helps while data is in memory already.
    """

    def __init__(
        self,
        extents: Sequence[Extent],
        make: Callable[[int], tuple[Any, memoryview]],
        *,
        keep: bool,
        threads: int | None = None,
    ) -> None:
        self._extents = extents
        self._files = {path: _open(path, keep) for path in {each.path for each in extents}}
        most = max((padded(each.size) for each in extents), default=PAGE)
        count = threads or (2 if keep else THREADS)
        self._slots = [Slot(*make(most)) for _ in range(min(count, len(extents)))]
        self._condition = threading.Condition()
        self._ready: dict[int, Slot] = {}
        self._next, self._closed = 0, False
        self._error: BaseException | None = None
        self._alone = self._adapts = keep and threads is None  # alone: the first thread reads, and the second waits
        self._threads = [
            threading.Thread(target=self._run, args=(slot, not number), daemon=True)
            for number, slot in enumerate(self._slots)
        ]
        for slot, thread in zip(self._slots, self._threads, strict=True):
            slot.free.set()
            thread.start()

    def __iter__(self) -> Iterator[Slot]:
        """The user sets `done` of each slot and then `free`."""
        for number in range(len(self._extents)):
            with self._condition:
                while number not in self._ready and not self._error:
                    self._condition.wait()
                if self._error:
                    raise self._error
                slot = self._ready.pop(number)
            yield slot

    def _run(self, slot: Slot, first: bool) -> None:
        try:
            while (number := self._take(slot, first)) is not None:
                began = time.monotonic()
                self._fill(self._extents[number], slot.view)
                size, took = self._extents[number].size, time.monotonic() - began
                with self._condition:
                    if self._adapts and size >= PIECE:
                        self._alone = size < took * MEMORY_SPEED
                    self._ready[number] = slot
                    self._condition.notify_all()
        except BaseException as error:  # noqa: BLE001  whoever waits for the data raises it
            with self._condition:
                self._error = error
                self._condition.notify_all()

    def _take(self, slot: Slot, first: bool) -> int | None:
        slot.free.wait()
        slot.free.clear()
        slot.done()
        with self._condition:
            while self._alone and not first and not self._closed:
                self._condition.wait()
            if self._closed or self._error or self._next == len(self._extents):
                return None
            self._next += 1
            return self._next - 1

    def _fill(self, extent: Extent, view: memoryview) -> None:
        done, end = 0, padded(extent.size)
        while done < extent.size:
            piece = view[done : min(done + PIECE, end)]
            read = _read(self._files[extent.path], piece, extent.offset + done)
            if not read:
                raise EOFError(f"{extent.path.name} ends at byte {extent.offset + done}")
            done += read

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        for slot, thread in zip(self._slots, self._threads, strict=True):
            slot.free.set()
            thread.join()
        for file in self._files.values():
            os.close(file)


def _open(path: Path, keep: bool) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC
    if keep:
        return os.open(path, flags)
    try:
        return os.open(path, flags | os.O_DIRECT)
    except OSError:
        return os.open(path, flags)


def _read(file: int, piece: memoryview, offset: int) -> int:
    try:
        return os.preadv(file, [piece], offset)
    except OSError as error:
        # Some file systems take the flag and then read nothing directly.
        if error.errno != errno.EINVAL:
            raise
        fcntl(file, F_SETFL, 0)
        return os.preadv(file, [piece], offset)
