"""The journal of a run of run.py in an offline package. Each line is on disk before the run continues."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from winhost.bundle.linux_bundle import WINHOST, Bundle, BundleRefusal, Result
from winhost.core import changes
from winhost.core.answers import Id, identity
from winhost.core.changes import Changes, Dependent, InvalidEntry
from winhost.core.journal_lines import DamagedLine, LineFormat, append, read_line
from winhost.core.steps import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from winhost.bundle.linux_bundle import State

SCHEMA = "winhost.bundle-journal/3"
LINES = LineFormat(lambda entry: json.dumps(entry, separators=(",", ":")))


@dataclass(frozen=True)
class BundleRun(Changes):
    """The state of a run by its journal. stage: all steps of the stage are done."""

    stage: bool = False


def fold(record: BundleRun, entry: State) -> BundleRun:
    kind = entry["event"]
    return FOLDS[kind](record, entry) if kind in FOLDS else record


def id_of(each: State) -> Id:
    return identity(each["resource"], each["key"])


def parse_step(entry: State) -> Step:
    return Step(**{**entry, "risks": tuple(entry["risks"]), "may_need": tuple(entry["may_need"])})


def parse_dependents(entry: State) -> tuple[Dependent, ...]:
    return tuple(Dependent(**each) for each in entry["users"])


FOLDS: dict[str, Callable[[BundleRun, State], BundleRun]] = {
    "begin": lambda run, entry: changes.record_step_start(
        run, parse_step(entry["step"]), entry["found"], parse_dependents(entry)
    ),
    "end": lambda run, entry: changes.record_step_end(run, id_of(entry), entry["after"], entry["restart"]),
    "failed": lambda run, entry: changes.record_step_end(run, id_of(entry), entry["after"]),
    "stage": lambda run, entry: replace(run, stage=True),
    "back": lambda run, entry: changes.record_rollback_start(run),
    "restarting": lambda run, entry: changes.record_restart_request(run, entry["boot_id"]),
    "restarted": lambda run, entry: changes.record_restart(
        run, ((id_of(each), each["after"]) for each in entry["left"])
    ),
    "dependents": lambda run, entry: changes.record_dependents(
        run, {id_of(each): parse_dependents(each) for each in entry["resources"]}
    ),
    "restored": lambda run, entry: changes.record_restored(run, map(id_of, entry["resources"])),
    "outcome": lambda run, entry: replace(run, outcome=entry["outcome"]),
}


class ReadJournal(NamedTuple):
    """A journal that was read. length: bytes up to the end of its last complete line."""

    record: BundleRun
    entries: list[Any]
    length: int

    @property
    def has_ended(self) -> bool:
        """True if the last entry is the outcome."""
        return bool(self.entries) and self.entries[-1]["event"] == "outcome"


def parse_journal(name: str, data: bytes) -> ReadJournal:
    record = BundleRun(run=name, id=name)  # no other run here has its name
    try:
        refuse_other_version(name, data)
        entries: list[Any] = list(LINES.entries(data))
        for entry in entries:
            record = fold(record, entry)
    except (DamagedLine, InvalidEntry) as error:
        which = f"line {error.number} is" if isinstance(error, DamagedLine) else f"the lines are ({error})"
        meaning = "It cannot be relied on for going on or going back. Nothing was changed."
        what = f"{name}: {which} not as winhost wrote it"
        raise BundleRefusal(2, "Damaged", what, meaning, "Restore the file from a copy.") from None
    return ReadJournal(record, entries, data.rfind(b"\n") + 1)


def refuse_other_version(name: str, data: bytes) -> None:
    """Refuse a journal of another schema by its first line, before the lines are checked by the rules of this
    schema.
    """
    first, ended, _ = data.partition(b"\n")
    found = read_line(1, first).get("schema", SCHEMA) if ended else SCHEMA
    if found != SCHEMA:
        what = f"{name}: schema is {str(found)!r}, and this package reads {SCHEMA!r}"
        meaning = "It may tell of changes that stand, and cannot be read. Nothing was changed."
        hint = "Roll that run back with the package that wrote it, then move the file out of this folder."
        raise BundleRefusal(2, "OtherVersion", what, meaning, hint)


class Journal:
    """The journal of one run. It is created with the first change, so that a refused run leaves nothing behind. name:
    empty until then.
    """

    def __init__(self, bundle: Bundle, folder: int | None) -> None:
        self._bundle, self._folder = bundle, folder
        self.name = ""
        self.record = BundleRun()
        self._file: int | None = None
        self._entries: list[Any] = []
        self._length = 0

    def names(self) -> list[str]:
        """List the journals of all plans, oldest first. A name has the sum of the plan, and the time of creation."""
        file_names = [] if self._folder is None else os.listdir(self._folder)  # noqa: PTH208 - by the folder that was checked
        names = [name[: -len(".jsonl")] for name in file_names if name.endswith(".jsonl")]
        return sorted(names, key=lambda name: name.split(".", 1)[::-1])

    def read(self, name: str) -> ReadJournal:
        with os.fdopen(self._open(name, os.O_RDONLY), "rb") as file:
            return parse_journal(name, file.read())

    def continue_run(self, name: str, journal: ReadJournal) -> None:
        """Continue an existing journal after its last complete line."""
        self.name = name
        self.record, self._entries, self._length = journal

    def write(self, kind: str, fields: State) -> None:
        if self._file is None:
            self._file = self._begin()
        if not self._entries:
            self._append("run", {"schema": SCHEMA, "host": self._bundle.plan["host"], "winhost": WINHOST})
        self._append(kind, fields)

    def write_result(self, result: Result) -> None:
        """Write the result to a file next to the journal."""
        if self._file is not None:
            with suppress(OSError):
                file = self._open(self.name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, ".result.json")
                with os.fdopen(file, "w", encoding="ascii") as output:
                    output.write(json.dumps(result.document))

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)

    def _begin(self) -> int:
        if self.name:
            file = self._open(self.name, os.O_WRONLY | os.O_APPEND)
            os.ftruncate(file, self._length)
            return file
        now = time.time()
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
        self.name = f"{self._bundle.sum}.{stamp}-{int(now * 1000) % 1000:03d}"
        self.record = replace(self.record, run=self.name, id=self.name)
        file = self._open(self.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)
        if self._folder is not None:
            os.fsync(self._folder)
        return file

    def _open(self, name: str, flags: int, ending: str = ".jsonl") -> int:
        return os.open(name + ending, flags | os.O_NOFOLLOW, 0o600, dir_fd=self._folder)

    def _append(self, kind: str, fields: State) -> None:
        assert self._file is not None
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        line = LINES.line(LINES.next_entry(self._entries, at, kind, fields))
        append(self._file, line, self._length)
        entry = json.loads(line)
        self._length += len(line)
        self._entries.append(entry)
        self.record = fold(self.record, entry)


@contextmanager
def open_journal(bundle: Bundle, path: str, is_preview: bool) -> Iterator[Journal]:
    """Open the journal of a run. is_preview: write nothing, and do not take the lock."""
    folder = open_journal_folder(path, make=not is_preview)
    journal = Journal(bundle, folder)
    locked = None
    try:
        if not is_preview:
            locked = lock(folder)
        yield journal
    finally:
        journal.close()
        for each in (locked, folder):
            if each is not None:
                os.close(each)


def open_journal_folder(path: str, make: bool) -> int | None:
    """Open the folder of journals, which is for root alone; None if it does not exist. make: create it."""
    if make:
        os.makedirs(path, 0o700, exist_ok=True)  # noqa: PTH103
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    status = os.fstat(folder)
    if status.st_uid != 0 or stat.S_IMODE(status.st_mode) & 0o077:
        os.close(folder)
        hint = "Look at what it holds and remove it, or name another folder with --journals."
        raise BundleRefusal(1, "NotOurs", f"{path} was not made by winhost: others may look or write there", "", hint)
    return folder


def lock(folder: int | None) -> int:
    """Take the lock. It is held until the file is closed or this process ends."""
    file = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise BundleRefusal(
            1, "Busy", "this machine is being changed by another run", "", "Wait for it to end."
        ) from None
    return file
