"""A file of this computer, copied to a host past its own connection."""

from collections.abc import Callable, Iterator
from pathlib import Path

_PIECE = 1 << 20


class NotWritten(Exception):
    """It could not be written to the host, or not all of it."""


def copied(source: Path, at: int, write: Callable[[bytes], None]) -> Iterator[int]:
    """Its bytes from `at` on, piece by piece; gives how many are there, before each and after the last."""
    with source.open("rb") as file:
        file.seek(at)
        while piece := file.read(_PIECE):
            yield at
            write(piece)
            at += len(piece)
    yield at
