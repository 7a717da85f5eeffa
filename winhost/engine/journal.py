"""The record of a run: append-only JSON lines, on disk before anything is done, readable by their owner only.

Each line carries a hash of itself and that of the one before, so that an edited journal is refused. A torn last line is
what a killed process leaves; it was not acted upon and is dropped.
"""

import errno
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from winhost import __version__
from winhost.model.errors import UsageError, visible, visible_json
from winhost.model.files import TooLarge, read_within
from winhost.model.migrate import renamed
from winhost.model.units import MiB

SCHEMA, VERSION_1 = "winhost.journal/2", "winhost.journal/1"
CONTINUED = "continued"
"""The event from which on a journal of version 1 has lines of version 2, because this winhost goes on with its run."""
LARGEST, MOST_VALUES = 64 * MiB, 200_000
"""Of a journal and of one of its lines. A step adds a few KiB, and a run has some dozens of them."""
RawEvent = Mapping[str, Any]
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # Windows has none; links there take rights that few accounts have


def damaged(path: Path, line: int, why: str) -> UsageError:
    """A journal that is not as it was written: rollback from it could restore what never was."""
    return UsageError(
        "Damaged",
        what=f"{visible(str(path))}:{line}: the journal is damaged: {visible(why)}",
        meaning="It cannot be relied on for going on or going back. The lines before this one can still be read.",
        hint="Restore the file from a copy, or plan again from the host as it is now: winhost plan",
    )


def _foreign(path: Path, schema: str, version: str) -> UsageError:
    """A journal of another version, or of something else: what its lines mean is not known here."""
    ours = schema.rpartition("/")[0] == SCHEMA.rpartition("/")[0]
    return UsageError(
        "ForeignJournal",
        what=f"{visible(str(path))}: schema is {visible(schema)!r}, not {SCHEMA!r}",
        meaning=f"It was written by winhost {visible(version)}, whose lines this one could misread."
        if ours
        else "It is not a journal of this winhost.",
        hint="Go on or back with the winhost that wrote it.",
    )


class Journal:
    """Appends to one file. `around` is called before and after each line is on disk: tests crash there."""

    def __init__(self, path: Path, around: Callable[[str, RawEvent], None] = lambda when, entry: None) -> None:
        self.path = path
        self._around = around
        lines = _read_lines(path) if path.exists() else []
        self.entries = _in_version_2(lines)
        self._size = sum(len(_line(entry)) for entry in lines)
        self._is_version_1 = _is_version_1(lines)
        self._cut_torn_line()

    def write(self, event: str, **fields: Any) -> RawEvent:
        """Append an entry; it is on disk when this returns. Raises OSError, and then nothing of it is there."""
        if self._is_version_1:
            self._is_version_1 = False
            self.write(CONTINUED, schema=SCHEMA, winhost=__version__)
        entry: dict[str, Any] = {
            "n": len(self.entries) + 1,
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": event,
            **fields,
            "previous": _last_hash(self.entries),
        }
        entry["hash"] = _hash(entry)
        self._around("before", entry)
        line = _line(entry)
        _append(self.path, line, self._size)
        self._size += len(line)
        self.entries.append(json.loads(line))
        self._around("after", entry)
        return entry

    def _cut_torn_line(self) -> None:
        if self.path.exists():
            descriptor = os.open(self.path, os.O_WRONLY | _NO_LINK)
            with os.fdopen(descriptor, "wb") as file:
                file.truncate(self._size)


def read_journal(path: Path) -> list[RawEvent]:
    """All whole lines in the words of version 2, perhaps none. Raises UsageError: Damaged for anything but a torn
    last line, ForeignJournal.
    """
    return _in_version_2(_read_lines(path))


def _in_version_2(lines: list[RawEvent]) -> list[RawEvent]:
    """Each keeps the hash of the line as it stands in the file."""
    old = _lines_of_version_1(lines)
    return [renamed(entry, "journal") if number < old else entry for number, entry in enumerate(lines)]


def _lines_of_version_1(lines: list[RawEvent]) -> int:
    if not lines or lines[0].get("schema") != VERSION_1:
        return 0
    return next((number for number, entry in enumerate(lines) if entry.get("event") == CONTINUED), len(lines))


def _is_version_1(lines: list[RawEvent]) -> bool:
    """To its end."""
    return bool(lines) and _lines_of_version_1(lines) == len(lines)


def _read_lines(path: Path) -> list[RawEvent]:
    """As they stand in the file."""
    entries: list[RawEvent] = []
    if path.is_symlink():
        raise damaged(path, 1, "it is a symbolic link")
    try:
        *lines, _torn = read_within(path, LARGEST).split(b"\n")
    except TooLarge as large:
        raise damaged(path, 1, f"the file {large}") from None
    except OSError as error:
        raise damaged(path, 1, f"it cannot be read ({error.strerror})") from error
    for number, text in enumerate(lines, start=1):
        entry, line = _read_line(path, number, text)
        if line != text + b"\n":
            raise damaged(path, number, "not as winhost writes it")
        if entry.get("hash") != _hash({name: value for name, value in entry.items() if name != "hash"}):
            raise damaged(path, number, "it was edited")
        if entry.get("previous") != _last_hash(entries) or entry.get("n") != number:
            raise damaged(path, number, "it does not follow from the line before")
        entries.append(entry)
    return entries


def _read_line(path: Path, number: int, text: bytes) -> tuple[RawEvent, bytes]:
    """The entry, and how we would write it."""
    if sum(map(text.count, (b"[", b"{", b","))) > MOST_VALUES:
        raise damaged(path, number, "not as winhost writes it: too many values")
    try:
        entry = json.loads(text)
        line = _line(entry)
    except (ValueError, RecursionError):
        raise damaged(path, number, "not JSON") from None
    if not isinstance(entry, dict):
        raise damaged(path, number, "not as winhost writes it")
    if number == 1 and entry.get("schema", SCHEMA) not in (SCHEMA, VERSION_1):
        raise _foreign(path, str(entry["schema"]), str(entry.get("winhost", "of an unknown version")))
    return entry, line


def _line(entry: RawEvent) -> bytes:
    return visible_json(entry, separators=(",", ":")).encode() + b"\n"


def _hash(entry: RawEvent) -> str:
    """Of an entry that has none yet."""
    return hashlib.sha256(_line(entry)).hexdigest()[:16]


def _last_hash(entries: list[RawEvent]) -> str:
    return str(entries[-1]["hash"]) if entries else ""


def _append(path: Path, line: bytes, size: int) -> None:
    """The whole line, or nothing of it, behind the bytes that are known to be there. Raises OSError."""
    new = not path.exists()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0) | _NO_LINK
    descriptor = os.open(path, flags, 0o600)
    try:
        whole = os.fstat(descriptor).st_size
        if whole != size:  # what follows from a line before that one would make two ends of it
            raise OSError(errno.EBUSY, "it ends otherwise than this run left it")
        try:
            _write_all(descriptor, line)
            os.fsync(descriptor)
        except OSError:
            with suppress(OSError):  # what cannot be cut off now is a torn last line
                os.ftruncate(descriptor, whole)
            raise
    finally:
        os.close(descriptor)
    if new and os.name == "posix":
        _sync_folder(path.parent)


def _write_all(descriptor: int, line: bytes) -> None:
    """A disk that gets full takes a part and says so by the count alone."""
    while line:
        written = os.write(descriptor, line)
        if written == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        line = line[written:]


def _sync_folder(folder: Path) -> None:
    """Without this a crash of the machine can lose the file's name though its lines are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
