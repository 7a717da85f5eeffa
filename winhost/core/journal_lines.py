"""Lines of a journal: JSON, each with a hash of itself and that of the one before, so that an edited one is refused.

What follows the last line feed is what a killed process leaves; it was not acted upon and is dropped.
"""

import errno
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from .dataclass import dataclass

RawEvent = Mapping[str, Any]
MOST_VALUES = 200_000
"""The most values of one line. A step adds a few KiB."""


class DamagedLine(Exception):
    """A line is not as winhost wrote it, or not where it was written."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(why)
        self.number = number
        self.why = why


@dataclass(frozen=True)
class LineFormat:
    """The format of a journal's lines. as_text: the text of an entry; ending: what the hash covers after it."""

    as_text: Callable[[RawEvent], str]
    ending: bytes = b""

    def line(self, entry: RawEvent) -> bytes:
        return self.as_text(entry).encode() + b"\n"

    def following(self, entries: Sequence[RawEvent], at: str, event: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Make the entry that comes after these."""
        entry = {"n": len(entries) + 1, "at": at, "event": event, **fields, "previous": last_hash(entries)}
        return {**entry, "hash": self._hash(entry)}

    def entries(self, data: bytes) -> list[RawEvent]:
        """Read the entries of all complete lines. Raises DamagedLine."""
        found: list[RawEvent] = []
        for number, text in enumerate(data.split(b"\n")[:-1], start=1):
            entry, written = read_line(number, text), b""
            with suppress(ValueError, RecursionError):
                written = self.line(entry)
            if written != text + b"\n":
                raise DamagedLine(number, "not as winhost writes it")
            if entry.get("hash") != self._hash({name: value for name, value in entry.items() if name != "hash"}):
                raise DamagedLine(number, "it was edited")
            if entry.get("previous") != last_hash(found) or entry.get("n") != number:
                raise DamagedLine(number, "it does not follow from the line before")
            found.append(entry)
        return found

    def _hash(self, entry: RawEvent) -> str:
        """Compute the hash of an entry that has none yet."""
        return hashlib.sha256(self.as_text(entry).encode() + self.ending).hexdigest()[:16]


def read_line(number: int, text: bytes) -> RawEvent:
    """Parse a line. Raises DamagedLine."""
    if sum(map(text.count, (b"[", b"{", b","))) > MOST_VALUES:
        raise DamagedLine(number, "not as winhost writes it: too many values")
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        raise DamagedLine(number, "not JSON") from None
    if not isinstance(entry, dict):
        raise DamagedLine(number, "not as winhost writes it")
    return entry


def last_hash(entries: Sequence[RawEvent]) -> str:
    return str(entries[-1]["hash"]) if entries else ""


def append(descriptor: int, line: bytes, size: int) -> None:
    """Append the whole line, or nothing of it, behind the bytes that are known to be there. The file is opened with
    O_APPEND. Raises OSError.
    """
    if os.fstat(descriptor).st_size != size:  # what follows from a line before that one would make two ends of it
        raise OSError(errno.EBUSY, "it ends otherwise than this run left it")
    try:
        left = line
        while left:  # a disk that gets full takes a part and says so by the count alone
            written = os.write(descriptor, left)
            if written == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            left = left[written:]
        os.fsync(descriptor)
    except OSError:
        with suppress(OSError):  # what cannot be cut off now is a torn last line
            os.ftruncate(descriptor, size)
        raise
