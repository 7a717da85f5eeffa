"""Of run.py in an offline package: the journal of a run, each line on disk before the next thing happens."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import stat
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from winhost.bundle.linux_run import WINHOST, Bundle, BundleRefusal, Result, refuse_others, visible
from winhost.core.answers import Id, identity
from winhost.core.changes import Changes, Dependent, Unfitting, begun, left, noted
from winhost.core.journal_lines import DamagedLine, LineFormat, append, read_line
from winhost.core.marks import BUNDLE, MarkedRun
from winhost.core.steps import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from winhost.bundle.linux_run import State

SCHEMA = "winhost.bundle-journal/2"
TELL_S = 5.0  # as the agent says over a wire what it waits for
LINES = LineFormat(lambda entry: json.dumps(entry, separators=(",", ":")))


@dataclass(frozen=True)
class BundleRun(Changes):
    """What the lines tell. stage: its steps are done. restart: this machine has to restart first, from the boot of this
    id where somebody was told so.
    """

    stage: bool = False
    outcome: str = ""
    restart: bool = False
    boot: str | None = None


def fold(record: BundleRun, entry: State) -> BundleRun:
    kind = entry["event"]
    return FOLDS[kind](record, entry) if kind in FOLDS else record


def id_of(each: State) -> Id:
    return identity(each["resource"], each["key"])


def step_of(told: State) -> Step:
    return Step(id="", why="", **{**told, "risks": tuple(told["risks"])})


def after_step(record: BundleRun, entry: State) -> BundleRun:
    restart = record.restart or entry.get("restart", False)
    return replace(left(record, id_of(entry), entry["after"]), in_flight=None, restart=restart)


def after_dependents(record: BundleRun, entry: State) -> BundleRun:
    users = {id_of(each): tuple(Dependent(u["resource"], u["key"]) for u in each["users"]) for each in entry["resting"]}
    return noted(record, users)


def after_outcome(record: BundleRun, entry: State) -> BundleRun:
    stays = map(id_of, entry["open"]) if "open" in entry else set(record.touched) - record.restored
    restored = frozenset(record.touched) - frozenset(stays)
    return replace(record, outcome=entry["outcome"], restored=restored)


FOLDS: dict[str, Callable[[BundleRun, State], BundleRun]] = {
    "begin": lambda record, entry: replace(begun(record, step_of(entry["step"]), entry["found"]), outcome=""),
    "end": after_step,
    "failed": after_step,
    "stage": lambda record, entry: replace(record, stage=True),
    "back": lambda record, entry: replace(record, going_back=True, outcome=""),
    "restarting": lambda record, entry: replace(record, boot=entry["boot_id"]),
    "restarted": lambda record, entry: replace(record, boot=None, restart=False),
    "dependents": after_dependents,
    "outcome": after_outcome,
}


class BundleJournal(NamedTuple):
    """As it was read. length: bytes up to the end of its last whole line."""

    record: BundleRun
    entries: list[Any]
    length: int


def parse_journal(name: str, data: bytes) -> BundleJournal:
    record = BundleRun()
    try:
        refuse_other_version(name, data)
        entries: list[Any] = list(LINES.entries(data))
        for entry in entries:
            record = fold(record, entry)
    except (DamagedLine, Unfitting) as error:
        which = f"line {error.number} is" if isinstance(error, DamagedLine) else f"the lines are ({error})"
        meaning = "It cannot be relied on for going on or going back. Nothing was changed."
        what = f"{name}: {which} not as winhost wrote it"
        raise BundleRefusal(2, "Damaged", what, meaning, "Restore the file from a copy.") from None
    return BundleJournal(record, entries, data.rfind(b"\n") + 1)


def refuse_other_version(name: str, data: bytes) -> None:
    """Judge the first whole line before it is held against rules that may not be its own."""
    first, ended, _ = data.partition(b"\n")
    found = read_line(1, first).get("schema", SCHEMA) if ended else SCHEMA
    if found != SCHEMA:
        what = f"{name}: schema is {str(found)!r}, and this package reads {SCHEMA!r}"
        meaning = "It may tell of changes that stand, and cannot be read. Nothing was changed."
        hint = "Roll that run back with the package that wrote it, then move the file out of this folder."
        raise BundleRefusal(2, "OtherVersion", what, meaning, hint)


class Waits(list[str]):
    """What the agent waits for, which it says here: told as it changes, but not more often than people read."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say, self._next = say, 0.0

    def __setitem__(self, at: Any, text: Any) -> None:
        super().__setitem__(at, text)
        now = time.monotonic()
        if now >= self._next:
            self._next = now + TELL_S
            self._say(f"  {text}")


class Run:
    """begun: it has a journal, which it gets with its first change: what is refused leaves nothing behind."""

    def __init__(self, bundle: Bundle, given: argparse.Namespace, folder: int | None) -> None:
        self.bundle = bundle
        self.journals: str = given.journals
        self.within: int = given.within
        self.keeps: bool = given.keep
        self.accepted = tuple(filter(None, given.accept.split(",")))
        self.check: bool = given.check
        self.quiet: bool = given.json
        self.changed = 0
        self.name = ""
        self.record = BundleRun()
        self.asked_to_stop = False
        self._folder = folder
        self._file: int | None = None
        self._entries: list[Any] = []
        self._length = 0
        bundle.agent.WAITS = Waits(self.say)

    @property
    def begun(self) -> bool:
        return self.name != ""

    @property
    def marked(self) -> MarkedRun:
        """As marks on this machine name it: no other run here has its name."""
        return MarkedRun(self.name, self.name, BUNDLE)

    def say(self, line: str) -> None:
        if not self.quiet:
            with suppress(OSError):
                sys.stdout.write(f"{visible(line)}\n")
                sys.stdout.flush()

    def names(self) -> list[str]:
        """Of every plan, oldest first: a journal is named by the sum of its plan and the time at which it was begun."""
        found = [] if self._folder is None else os.listdir(self._folder)  # noqa: PTH208 - by the folder that was checked
        names = [name[: -len(".jsonl")] for name in found if name.endswith(".jsonl")]
        return sorted(names, key=lambda name: name.split(".", 1)[::-1])

    def read(self, name: str) -> BundleJournal:
        with os.fdopen(self._open(name, os.O_RDONLY), "rb") as file:
            return parse_journal(name, file.read())

    def go_on(self, name: str, journal: BundleJournal) -> None:
        """With a journal that is there, behind its last whole line."""
        self.name, self.record = name, journal.record
        self._entries, self._length = journal.entries, journal.length

    def write(self, kind: str, **fields: Any) -> None:
        if self._file is None:
            self._file = self._begin()
        if not self._entries:
            plan = self.bundle.plan
            self._line("run", {"schema": SCHEMA, "host": plan["host"], "winhost": WINHOST})
        self._line(kind, fields)

    def keep(self, result: Result) -> None:
        """For whoever was not there to see how it ended."""
        if self._file is not None:
            with suppress(OSError):
                file = self._open(self.name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, ".result.json")
                with os.fdopen(file, "w", encoding="ascii") as written:
                    written.write(json.dumps(result.document))

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)

    def _begin(self) -> int:
        if self.begun:
            file = self._open(self.name, os.O_WRONLY | os.O_APPEND)
            os.ftruncate(file, self._length)
            return file
        now = time.time()
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
        self.name = f"{self.bundle.sum}.{stamp}-{int(now * 1000) % 1000:03d}"
        file = self._open(self.name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)
        if self._folder is not None:
            os.fsync(self._folder)
        return file

    def _open(self, name: str, flags: int, ending: str = ".jsonl") -> int:
        return os.open(name + ending, flags | os.O_NOFOLLOW, 0o600, dir_fd=self._folder)

    def _line(self, kind: str, fields: State) -> None:
        assert self._file is not None
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        line = LINES.line(LINES.following(self._entries, at, kind, fields))
        append(self._file, line, self._length)
        written = json.loads(line)
        self._length += len(line)
        self._entries.append(written)
        self.record = fold(self.record, written)


@contextmanager
def running(bundle: Bundle, given: argparse.Namespace) -> Iterator[Run]:
    refuse_others(bundle)
    folder = open_journals(given.journals, make=not given.check)
    run = Run(bundle, given, folder)
    locked = None
    try:
        if not given.check:
            locked = lock(folder)
            stop_gently(run)
        yield run
    finally:
        run.close()
        for each in (locked, folder):
            if each is not None:
                os.close(each)


def open_journals(path: str, make: bool) -> int | None:
    """A folder for root alone; nothing where there is none yet and none is to be made."""
    if make:
        os.makedirs(path, 0o700, exist_ok=True)  # noqa: PTH103
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    found = os.fstat(folder)
    if found.st_uid != 0 or stat.S_IMODE(found.st_mode) & 0o077:
        os.close(folder)
        hint = "Look at what it holds and remove it, or name another folder with --journals."
        raise BundleRefusal(1, "NotOurs", f"{path} was not made by winhost: others may look or write there", "", hint)
    return folder


def lock(folder: int | None) -> int:
    """Held until it is closed, or this process ends."""
    file = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise BundleRefusal(
            1, "Busy", "this machine is being changed by another run", "", "Wait for it to end."
        ) from None
    return file


def stop_gently(run: Run) -> None:
    """A package half unpacked is worse than a minute: a step comes to its end, also where the terminal is gone."""

    def stop(number: int, frame: object) -> None:
        run.asked_to_stop = True

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
