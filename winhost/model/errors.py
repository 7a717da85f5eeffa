"""Errors that a user sees: fields, and the three sentences made of them (what, what it means, what to do)."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the command line; over several hosts the highest counts."""

    SUCCESS = 0
    FAILURE = 1
    USAGE = 2
    REFUSED = 3
    DRIFT = 4
    UNREACHABLE = 5


class WinhostError(Exception, ABC):
    """The base of all errors that a user sees; anything else that escapes is a defect of winhost.

    Subclasses are `@dataclass(eq=False)` with the facts of the case as fields. Not frozen, because
    `contextlib` sets `__traceback__` on exceptions that pass through it.
    """

    exit_code: Exit = Exit.FAILURE

    @property
    @abstractmethod
    def what(self) -> str:
        """What happened, in one sentence."""

    @property
    def meaning(self) -> str | None:
        """What it means for the user, where `what` does not say it all."""
        return None

    @property
    def hint(self) -> str | None:
        """What to do next, mostly a command."""
        return None

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True)
class ErrorDocument:
    """An error for programs. kind: its class; exit_code: as in Exit."""

    kind: str
    exit_code: int
    what: str
    meaning: str | None
    hint: str | None


@dataclass(frozen=True)
class ErrorResult:
    """The result where there is only an error. host: whose, where it is about one."""

    host: str | None
    error: ErrorDocument


def failed(error: WinhostError, host: str | None = None) -> ErrorResult:
    """An error for programs. The host is asked of the error where it is not given."""
    whose = host or getattr(error, "host", None)
    document = ErrorDocument(type(error).__name__, int(error.exit_code), error.what, error.meaning, error.hint)
    return ErrorResult(whose if isinstance(whose, str) else None, document)


class UsageError(WinhostError):
    """What we were given cannot be used: a word, a file, a secret."""

    exit_code = Exit.USAGE


@dataclass(frozen=True)
class Fault:
    """One fault of a file. Line and column count from 1; None where the place cannot be told."""

    file: str
    line: int | None
    column: int | None
    path: str
    message: str

    def __str__(self) -> str:
        place = [str(part) for part in (self.file, self.line, self.column) if part is not None]
        return visible(": ".join(part for part in (":".join(place), self.path, self.message) if part))


MOST_FAULTS = 50
"""How many faults of one file are told: nobody mends more at a time, and a hostile file has millions."""


@dataclass(eq=False)
class FileFaults(UsageError):
    """The faults of one file, in the order of their places. more: how many there are beside these."""

    faults: tuple[Fault, ...]
    more: int = 0

    @property
    def what(self) -> str:
        if len(self.faults) == 1 and not self.more:
            return str(self.faults[0])
        return f"{visible(self.faults[0].file)} has {len(self.faults) + self.more:,} faults"

    @property
    def meaning(self) -> str | None:
        if len(self.faults) == 1 and not self.more:
            return None
        more = (f"and {self.more:,} more",) if self.more else ()
        return "\n".join((*map(str, self.faults), *more))


def visible(text: str) -> str:
    """The text with everything that a terminal would obey, hide or reorder (ESC, U+202E, …) written as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


_NOT_PLAIN = re.compile(r"[^\n -~]")


def visible_json(document: object, *, indent: int | None = None, separators: tuple[str, str] | None = None) -> str:
    """JSON that can be looked at: what `visible` would escape is escaped here too, and reads back as it was."""
    text = json.dumps(document, ensure_ascii=False, indent=indent, separators=separators)
    return _NOT_PLAIN.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)


_LONGEST_WORD = 300


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'port'?` where a known word is near enough, if need be in another case, else nothing."""
    if len(word) > _LONGEST_WORD:
        return ""
    spelled = {name.casefold(): name for name in known}
    near = get_close_matches(word, spelled.values(), n=1) or get_close_matches(word.casefold(), spelled, n=1)
    return f"; did you mean '{visible(spelled[near[0].casefold()])}'?" if near else ""
