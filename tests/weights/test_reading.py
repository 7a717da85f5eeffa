"""The parallel reader: data in order, bounded buffers, and errors where the data is waited for."""

import errno
import itertools
import mmap
import os
from fcntl import F_GETFL, fcntl
from pathlib import Path
from threading import Event, get_ident
from typing import Any

import pytest

from tests.rows import each_row
from winhost_weights.container import PAGE
from winhost_weights.reading import Extent, Reader


def buffer(size: int) -> tuple[mmap.mmap, memoryview]:
    made = mmap.mmap(-1, size)
    return made, memoryview(made)


@pytest.fixture
def extents(tmp_path: Path) -> list[Extent]:
    found = []
    for name in ("one", "two"):
        path = tmp_path / name
        path.write_bytes(b"".join(bytes([number]) * PAGE for number in range(60)))
        found += [Extent(path, number * PAGE, PAGE * 3 - number) for number in range(0, 57, 3)]
    return found


@each_row("keep", [True, False])
@each_row("threads", [None, 1, 3, 8, 100])
def test_everything_comes_in_order(keep: bool, threads: int | None, extents: list[Extent]) -> None:
    reader = Reader(extents, buffer, keep=keep, threads=threads)
    for extent, slot in zip(extents, reader, strict=True):
        data = extent.path.read_bytes()[extent.offset : extent.offset + extent.size]
        assert bytes(slot.view[: extent.size]) == data
        slot.free.set()
    reader.close()


def test_through_the_page_cache_one_thread_waits_for_the_disk_and_two_read_memory(
    extents: list[Extent], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, now = os.preadv, itertools.count()
    who = set()

    def noted(file: int, *words: Any) -> int:
        who.add(get_ident())
        return read(file, *words)

    monkeypatch.setattr(os, "preadv", noted)
    monkeypatch.setattr("winhost_weights.reading.PIECE", PAGE)
    monkeypatch.setattr("winhost_weights.reading.time.monotonic", lambda: next(now))
    reader = Reader(extents, buffer, keep=True)
    for slot in reader:
        slot.free.set()
    reader.close()
    assert len(who) == 1, "what takes seconds comes from a disk"
    monkeypatch.setattr("winhost_weights.reading.time.monotonic", lambda: 0)
    reader = Reader(extents, buffer, keep=True)
    first, second = itertools.islice(reader, 2)  # the first buffer is not given back before another thread reads
    assert first is not second
    reader.close()


def test_a_buffer_is_filled_again_only_once_its_use_is_over(extents: list[Extent]) -> None:
    over = Event()
    reader = Reader(extents, buffer, keep=True, threads=1)
    slots = iter(reader)
    slot = next(slots)
    before = bytes(slot.view)
    slot.done = over.wait
    slot.free.set()
    assert not reader._ready
    assert bytes(slot.view) == before
    over.set()
    assert next(slots) is slot
    slot.free.set()
    reader.close()


def test_a_file_system_that_reads_nothing_directly_is_read_otherwise(
    extents: list[Extent], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.preadv

    def buffered(file: int, *words: Any) -> int:
        if fcntl(file, F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return read(file, *words)

    monkeypatch.setattr(os, "preadv", buffered)
    reader = Reader(extents, buffer, keep=False, threads=2)
    for extent, slot in zip(extents, reader, strict=True):
        assert slot.view[0] == extent.offset // PAGE
        slot.free.set()
    reader.close()


def test_a_file_that_ends_early_is_an_error_where_its_data_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(bytes(PAGE))
    reader = Reader([Extent(path, 0, 2 * PAGE)], buffer, keep=True)
    with pytest.raises(EOFError, match="short ends at byte 4096"):
        next(iter(reader))
    reader.close()


def test_it_ends_when_nobody_takes_the_rest(extents: list[Extent]) -> None:
    reader = Reader(extents, buffer, keep=True)
    next(iter(reader))
    reader.close()
    assert not any(thread.is_alive() for thread in reader._threads)
