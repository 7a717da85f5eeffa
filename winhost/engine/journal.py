"""The record of a run: append-only JSON lines, on disk before anything is done, readable by their owner only.

Each line carries the hash of the one before, so that an edited journal is refused. A torn last line is what a killed
process leaves; it was not acted upon and is dropped.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from winhost.model.errors import UsageFault, visible

SCHEMA = "winhost.journal/1"
Entry = Mapping[str, Any]


@dataclass(eq=False)
class Damaged(UsageFault):
    """A journal that is not as it was written: rollback from it could put back what never was."""

    path: Path
    line: int
    why: str

    @property
    def what(self) -> str:
        return f"{visible(str(self.path))}:{self.line}: the journal is damaged: {self.why}"

    @property
    def meaning(self) -> str:
        return "It cannot be relied on for going on or going back. The lines before this one can still be read."

    @property
    def hint(self) -> str:
        return "Restore the file from a copy, or plan again from the host as it is now: winhost plan"


class Journal:
    """Appends to one file. `around` is called before and after each line is on disk: tests crash there."""

    def __init__(self, path: Path, around: Callable[[str, Entry], None] = lambda when, entry: None) -> None:
        self.path = path
        self._around = around
        self.entries = read_journal(path) if path.exists() else []
        self._previous = _hash(_line(self.entries[-1])) if self.entries else ""
        self._cut_torn_line()

    def write(self, event: str, **fields: Any) -> Entry:
        """Append an entry; it is on disk when this returns."""
        entry = {
            "n": len(self.entries) + 1,
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": event,
            **fields,
            "previous": self._previous,
        }
        self._around("before", entry)
        line = _line(entry)
        _append(self.path, line)
        self._previous = _hash(line)
        self.entries.append(json.loads(line))
        self._around("after", entry)
        return entry

    def _cut_torn_line(self) -> None:
        if self.path.exists():
            with self.path.open("r+b") as file:
                file.truncate(sum(len(_line(entry)) for entry in self.entries))


def read_journal(path: Path) -> list[Entry]:
    """All whole lines. Raises Damaged for anything but a torn last line."""
    entries: list[Entry] = []
    previous = ""
    *lines, _torn = path.read_bytes().split(b"\n")
    for number, text in enumerate(lines, start=1):
        try:
            entry = json.loads(text)
        except ValueError:
            raise Damaged(path, number, "not JSON") from None
        line = text + b"\n"
        if not isinstance(entry, dict) or _line(entry) != line:
            raise Damaged(path, number, "not as winhost writes it")
        if entry.get("previous") != previous or entry.get("n") != number:
            raise Damaged(path, number, "it does not follow from the line before")
        previous = _hash(line)
        entries.append(entry)
    return entries


def _line(entry: Entry) -> bytes:
    return json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()[:16]


def _append(path: Path, line: bytes) -> None:
    new = not path.exists()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, line)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if new and os.name == "posix":
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Without this a crash of the machine can lose the file's name though its lines are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
