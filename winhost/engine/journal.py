"""The journal of a run: append-only JSON lines, on disk before each change, readable by their owner only.

Its lines are those of core/journal_lines.py.
"""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from winhost.core.journal_lines import DamagedLine, LineFormat, RawEvent, append, read_line
from winhost.model.errors import UsageError, visible, visible_json
from winhost.model.files import TooLarge, read_within
from winhost.model.units import MiB
from winhost.model.versions import refuse_other_version

SCHEMA = "winhost.journal/3"
MAX_SIZE = 64 * MiB  # a step adds a few KiB, and a run has some dozens of them
LINES = LineFormat(lambda entry: visible_json(entry, separators=(",", ":")), ending=b"\n")
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has no such flag, and few accounts may create links there


def damaged_journal_error(path: Path, line: int, why: str) -> UsageError:
    """Make the error for a journal that is not as it was written. A rollback by it could restore wrong states."""
    return UsageError(
        "Damaged",
        what=f"{visible(str(path))}:{line}: the journal is damaged: {visible(why)}",
        meaning="It cannot be relied on for going on or going back. The lines before this one can still be read.",
        hint="Restore the file from a copy, or plan again from the host as it is now: winhost plan HOST",
    )


class Journal:
    """The journal in one file. hook: is called before and after each line is on disk; tests crash there."""

    def __init__(self, path: Path, hook: Callable[[str, RawEvent], None] = lambda when, entry: None) -> None:
        self.path = path
        self._hook = hook
        self.entries, self._size = _read(path) if path.exists() else ([], 0)
        if path.exists():  # remove an incomplete last line
            descriptor = os.open(path, os.O_WRONLY | _NO_FOLLOW)
            with os.fdopen(descriptor, "wb") as file:
                file.truncate(self._size)

    def write(self, event: str, **fields: Any) -> RawEvent:
        """Append an entry. It is on disk when this returns. Raises OSError, and then the file has no part of it."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = LINES.next_entry(self.entries, at, event, fields)
        self._hook("before", entry)
        line = LINES.line(entry)
        _append(self.path, line, self._size)
        self._size += len(line)
        self.entries.append(read_line(entry["n"], line))
        self._hook("after", entry)
        return entry


def read_journal(path: Path) -> list[RawEvent]:
    """Read all complete lines, perhaps none. Raises UsageError: Damaged (an incomplete last line is no damage),
    OtherVersion, ForeignJournal.
    """
    return _read(path)[0]


def _read(path: Path) -> tuple[list[RawEvent], int]:
    """Read a journal's events and the size of its complete lines in bytes."""
    if path.is_symlink():
        raise damaged_journal_error(path, 1, "it is a symbolic link")
    try:
        data = read_within(path, MAX_SIZE)
        _refuse_foreign(path, data)
        return LINES.entries(data), data.rfind(b"\n") + 1
    except TooLarge as large:
        raise damaged_journal_error(path, 1, f"the file {large}") from None
    except OSError as error:
        raise damaged_journal_error(path, 1, f"it cannot be read ({error.strerror})") from error
    except DamagedLine as line:
        raise damaged_journal_error(path, line.number, line.why) from None


def _refuse_foreign(path: Path, data: bytes) -> None:
    """Refuse a journal of another schema by its first line, before the lines are checked by the rules of this
    schema.
    """
    first, ended, _ = data.partition(b"\n")
    if not ended:
        return
    entry = read_line(1, first)
    refuse_other_version(f"{path}:1", entry)
    if (schema := entry.get("schema", SCHEMA)) != SCHEMA:
        raise UsageError(
            "ForeignJournal",
            what=f"{visible(str(path))}: schema is {visible(str(schema))!r}, not {SCHEMA!r}",
            meaning="It is not a journal of this winhost.",
            hint="Move the file out of this folder.",
        )


def _append(path: Path, line: bytes, size: int) -> None:
    """Append a line, and sync the folder of a new file. Raises OSError."""
    new = not path.exists()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0) | _NO_FOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        append(descriptor, line, size)
    finally:
        os.close(descriptor)
    if new and os.name == "posix":
        # Otherwise a crash of the machine could lose the file's name, although its lines are on disk.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
