"""The lines of a journal. Each is JSON with its own hash and that of the line before, so that an edited one is refused.

Bytes after the last line feed are an incomplete line of a killed process. They are dropped: nothing was done after it.
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
MAX_VALUES = 200_000
"""The largest number of values in one line. A step adds a few KiB."""


class DamagedLine(Exception):
    """A line is not as winhost wrote it, or it does not follow from the line before."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(why)
        self.number = number
        self.why = why


@dataclass(frozen=True)
class LineFormat:
    """The format of a journal's lines. as_text: formats an entry; ending: bytes that the hash covers after that
    text.
    """

    as_text: Callable[[RawEvent], str]
    ending: bytes = b""

    def line(self, entry: RawEvent) -> bytes:
        return self.as_text(entry).encode() + b"\n"

    def next_entry(self, entries: Sequence[RawEvent], at: str, event: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entry that follows these."""
        entry = {"n": len(entries) + 1, "at": at, "event": event, **fields, "previous": last_hash(entries)}
        return {**entry, "hash": self._hash(entry)}

    def entries(self, data: bytes) -> list[RawEvent]:
        """Read the entries of all complete lines. Raises DamagedLine."""
        entries: list[RawEvent] = []
        for number, text in enumerate(data.split(b"\n")[:-1], start=1):
            entry, expected = read_line(number, text), b""
            with suppress(ValueError, RecursionError):
                expected = self.line(entry)
            if expected != text + b"\n":
                raise DamagedLine(number, "not as winhost writes it")
            if entry.get("hash") != self._hash({name: value for name, value in entry.items() if name != "hash"}):
                raise DamagedLine(number, "it was edited")
            if entry.get("previous") != last_hash(entries) or entry.get("n") != number:
                raise DamagedLine(number, "it does not follow from the line before")
            entries.append(entry)
        return entries

    def _hash(self, entry: RawEvent) -> str:
        """Compute the hash of an entry without the key `hash`."""
        return hashlib.sha256(self.as_text(entry).encode() + self.ending).hexdigest()[:16]


def read_line(number: int, text: bytes) -> RawEvent:
    """Parse a line. Raises DamagedLine."""
    if sum(map(text.count, (b"[", b"{", b","))) > MAX_VALUES:
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
    """Append the whole line, or nothing of it, to a file that was opened with O_APPEND. size: of the file, as this
    process knows it. Raises OSError, also if the file has another size.
    """
    if os.fstat(descriptor).st_size != size:  # another process appended; both lines would have the same predecessor
        raise OSError(errno.EBUSY, "it ends otherwise than this run left it")
    try:
        remaining = line
        while remaining:  # a disk that becomes full writes only a part, and reports that by the count alone
            written = os.write(descriptor, remaining)
            if written == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            remaining = remaining[written:]
        os.fsync(descriptor)
    except OSError:
        with suppress(OSError):  # an incomplete last line is dropped when the journal is read
            os.ftruncate(descriptor, size)
        raise
