"""Errors that a user sees, raised where they happen: what happened, what it means, and what to do next."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

from winhost.core.dataclass import dataclass


class Exit(IntEnum):
    """Exit codes of the command line; for several hosts, the highest is returned."""

    SUCCESS = 0
    FAILURE = 1
    USAGE = 2
    REFUSED = 3
    DRIFT = 4
    UNREACHABLE = 5


class WinhostError(Exception):
    """An error that a user sees. Any other exception that reaches the command line is a defect of winhost.

    code: its name for programs, which never changes; what: what happened, in one sentence; meaning: what that means for
    the user, unless `what` says it; hint: what to do next, mostly a command; host: the name of the host, if the error
    is about one host.

    There is a subclass for each exit code, and for each error that some code catches.
    """

    exit_code: Exit = Exit.FAILURE

    def __init__(
        self, code: str, what: str, meaning: str | None = None, hint: str | None = None, *, host: str | None = None
    ) -> None:
        super().__init__(what)
        self.code, self.what, self.meaning, self.hint = code, what, meaning, hint
        self.host = host

    def __str__(self) -> str:
        return self.what


@dataclass(frozen=True)
class ErrorDocument:
    """An error for programs. kind: its code; exit_code: as in Exit."""

    kind: str
    exit_code: int
    what: str
    meaning: str | None
    hint: str | None


@dataclass(frozen=True)
class ErrorResult:
    """The result if there is only an error. host: its name, if the error is about one host."""

    host: str | None
    error: ErrorDocument


class UsageError(WinhostError):
    """The input cannot be used: an argument, a file, a secret. Nothing was done."""

    exit_code = Exit.USAGE


class RefusedError(WinhostError):
    """winhost refuses something that is known to fail, or that is unverified."""

    exit_code = Exit.REFUSED


class DriftError(WinhostError):
    """The host differs from the plan, or from what it is compared with."""

    exit_code = Exit.DRIFT


@dataclass(frozen=True)
class Fault:
    """One fault of a file. Line and column count from 1; None where its position is not known."""

    file: str
    line: int | None
    column: int | None
    path: str
    message: str

    def __str__(self) -> str:
        position = [str(part) for part in (self.file, self.line, self.column) if part is not None]
        return visible(": ".join(part for part in (":".join(position), self.path, self.message) if part))


MAX_LISTED_FAULTS = 50
"""The number of faults of one file that are listed. A hostile file may have millions."""


def file_faults(faults: Sequence[Fault], more: int = 0) -> UsageError:
    """Return the error for a file with these faults, in this order. more: how many further faults are not listed."""
    total = len(faults) + more
    unlisted = (f"and {more:,} more",) if more else ()
    return UsageError(
        "FileFaults",
        what=str(faults[0]) if total == 1 else f"{visible(faults[0].file)} has {total:,} faults",
        meaning=None if total == 1 else "\n".join((*map(str, faults), *unlisted)),
    )


def visible(text: str) -> str:
    """Escape everything in a text that a terminal would interpret, hide or reorder (ESC, U+202E, …)."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


_NON_ASCII = re.compile(r"[^\n -~]")


def visible_json(document: object, *, indent: int | None = None, separators: tuple[str, str] | None = None) -> str:
    """Format JSON for a terminal: everything that `visible` would escape becomes a JSON escape, so that it reads back
    unchanged.
    """
    text = json.dumps(document, ensure_ascii=False, indent=indent, separators=separators)
    if text.isprintable():
        return text
    return _NON_ASCII.sub(lambda found: found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1], text)


_MAX_WORD_LENGTH = 300


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return `; did you mean 'port'?` if a known word is similar enough, also in another case; else an empty text."""
    if len(word) > _MAX_WORD_LENGTH:
        return ""
    spelled = {name.casefold(): name for name in known}
    near = _closest_match(word, [*spelled.values()], cutoff) or _closest_match(word.casefold(), [*spelled], cutoff)
    return f"; did you mean '{visible(spelled[near.casefold()])}'?" if near else ""


def did_you_mean_or_period(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return what `did_you_mean` returns; if that is empty, the full stop that ends the sentence."""
    return did_you_mean(word, known, cutoff=cutoff) or "."


def _closest_match(word: str, known: Sequence[str], cutoff: float) -> str | None:
    """Return the closest word; of equally close ones the first, because callers list preferred words first. difflib
    alone would return the last in the alphabet.
    """
    from difflib import SequenceMatcher, get_close_matches

    near = sorted(get_close_matches(word, known, 5, cutoff), key=known.index)
    return max(near, key=lambda name: SequenceMatcher(None, name, word).ratio(), default=None)


def format_choices(known: Mapping[str, str]) -> str:
    """Format keys and names, one pair on each line."""
    return "\n".join(f"  {key}  {visible(name)}" for key, name in known.items())


class NotOnHost(UsageError):
    """The host does not have the requested GPU, VM or network adapter, or several have that name."""

    def __init__(self, host: str, kind: str, requested: str, known: Mapping[str, str], several: bool = False) -> None:
        name = visible(requested)
        super().__init__(
            "NoSuchThing",
            what=f"{host} has several {kind}s called '{name}'"
            if several
            else f"{host} has no {kind} '{name}'{did_you_mean(requested, known.values())}",
            hint=f"Name one of these, by its first column where names repeat:\n{format_choices(known)}"
            if known
            else None,
            host=host,
        )
        self.kind = kind
