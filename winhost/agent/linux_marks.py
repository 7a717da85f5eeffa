# Part of the agent: marks. A run of winhost writes a line of JSON before each change, and keeps it until it is rolled
# back. By these lines a controller distinguishes changes by other controllers from those by people. The agent does not
# parse them.
from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from winhost.agent.linux_agent import STATE_FOLDER, Key, State, bad_request, changes, reads
from winhost.agent.linux_files import file_status, put, read_file, remove

if TYPE_CHECKING:
    from winhost.agent.linux_agent import Found

MARKS = f"{STATE_FOLDER}/marks.txt"
MAX_MARKS = 1 << 18  # characters


def marks() -> list[str]:
    """Read the marks. Lines that a damaged disk has garbled are skipped, because they must not prevent a rollback."""
    text = read_file(MARKS).decode("utf-8", "replace") if file_status(MARKS) is not None else ""
    return [line for line in text.split("\n") if line and line.isprintable()]


def put_marks(lines: list[str]) -> None:
    if not lines:
        remove(MARKS)
        with suppress(OSError):  # the folder is not empty
            Path(STATE_FOLDER).rmdir()
        return
    # Runs that are never rolled back must not fill the disk, so the oldest lines are dropped.
    size, first = sum(len(line) + 1 for line in lines), 0
    while size > MAX_MARKS and first < len(lines) - 1:
        size -= len(lines[first]) + 1
        first += 1
    put(MARKS, "".join(f"{line}\n" for line in lines[first:]), 0o600)


def add_mark(mark: str) -> None:
    if mark not in (known := marks()):
        put_marks([*known, mark])


@reads("RunMarks")
def get_marks(key: Key | None) -> Found:
    return [({}, {"marks": marks()})]


@changes("RunMarks", "marks")
def set_marks(key: Key, desired: State, how: State) -> None:
    lines = desired["marks"]
    if not isinstance(lines, list) or not all(isinstance(line, str) and line.isprintable() for line in lines):
        raise bad_request("marks are lines of text.")
    put_marks(lines)
