# Part of the agent, marks: what runs changed here, a line of JSON for each change, written before it and kept until the
# run is rolled back. By them a controller tells the run of another one from a person. Only controllers read the lines.
from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from winhost.agent.linux_agent import KEPT, Key, State, bad_request, changes, reads
from winhost.agent.linux_files import content, put, remove, status

if TYPE_CHECKING:
    from winhost.agent.linux_agent import Found

MARKS = f"{KEPT}/marks.txt"
MOST_MARKS = 1 << 18  # characters


def marks() -> list[str]:
    """The marks. Garbage that a damaged disk left among them is none, and must not prevent changes or rollback."""
    text = content(MARKS).decode("utf-8", "replace") if status(MARKS) is not None else ""
    return [line for line in text.split("\n") if line and line.isprintable()]


def put_marks(lines: list[str]) -> None:
    if not lines:
        remove(MARKS)
        with suppress(OSError):  # there is something else in it
            Path(KEPT).rmdir()
        return
    # Runs that nobody ever rolls back must not fill the disk: the oldest lines go.
    size, first = sum(len(line) + 1 for line in lines), 0
    while size > MOST_MARKS and first < len(lines) - 1:
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
