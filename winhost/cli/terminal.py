"""Standard streams: the width of the terminal, line breaks, characters that an encoding lacks, and closed pipes."""

import codecs
import errno
import io
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

import click

_GLUE = "\ue000"  # stands for a blank at which lines do not break; `visible` lets no such character through
_HYPHEN = "\ue001"  # likewise for a hyphen
_DEFAULT_WIDTH = 80  # columns, if the width of the terminal is not known

_VALUE = r"[^\s-]\S*"
_OPTION = rf"--?[A-Za-z][\w-]*(?: {_VALUE})?"
_CAPITAL = r"\S*[^a-z\s]\S*"  # anything but a plain word: RUN, gpu-01, plan.json, '@lab'
_WINHOST_COMMAND = (
    rf"winhost (?:(?:facts|host|install|lab|lint|models|render|serve|workload) )?[a-z]+(?: (?:{_OPTION}|{_CAPITAL}))*"
)
_OTHER_COMMAND = (
    rf"(?:[A-Z][a-z]+-[A-Z]\w+|wsl(?:\.exe)?|nvidia-smi|bcdedit)(?: (?:{_OPTION}|\||{_CAPITAL}|[a-z]+(?=[.,;)]|$)))+"
)
_TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d\S*"
_UNBROKEN = re.compile(rf"(?<![^\s(\[`'])(?:{_WINHOST_COMMAND}|{_OTHER_COMMAND}|{_OPTION}|{_TIME})")


def terminal_width(stream: TextIO) -> int | None:
    """Return the width of the terminal behind a stream; None for a file or a pipe."""
    if not stream.isatty():
        return None
    columns_set = os.environ.get("COLUMNS", "")
    if columns_set.isdecimal() and int(columns_set):
        return int(columns_set)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _DEFAULT_WIDTH
    except (OSError, ValueError):
        return _DEFAULT_WIDTH


def glue(text: str, max_length: int = sys.maxsize) -> str:
    """Keep commands, options with values, and times on one line. max_length: longer pieces may break."""
    return _UNBROKEN.sub(lambda match: match[0].replace(" ", _GLUE) if len(match[0]) <= max_length else match[0], text)


def unglue(text: str) -> str:
    """Undo `glue`."""
    return text.replace(_GLUE, " ")


def wrap(text: str, hang: int, stream: TextIO, lead: str = "") -> str:
    """Break a paragraph into lines for a stream. hang: how much further lines are indented more than the first; lead:
    the beginning of every line.

    A piece that is longer than a line gets a line of its own, which only the terminal breaks, so that it can be copied.
    A file or a pipe gets the paragraph as one line, so that it can be searched.
    """
    width = terminal_width(stream)
    if width is None or len(lead + text) <= width:
        return lead + text
    indent = " " * (len(text) - len(text.lstrip(" ")) + hang)
    lines = textwrap.wrap(
        glue(text),
        max(width - len(lead), 1),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
    return unglue("\n".join(lead + line for line in lines))


class HelpFormatter(click.HelpFormatter):
    """Formats help for terminals of any width. Narrow ones get each explanation below its option."""

    def write_text(self, text: str) -> None:
        super().write_text(self._keep_unbroken(re.sub(r"(?<=\S)\n *(?=\S)", " ", text)))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        if self.width < 2 * (col_max + col_spacing):
            col_max = 4
        super().write_dl([(term, self._keep_unbroken(text)) for term, text in rows], col_max, col_spacing)

    def getvalue(self) -> str:
        return unglue(super().getvalue()).replace(_HYPHEN, "-")

    def _keep_unbroken(self, text: str) -> str:
        """Keep click from breaking lines at hyphens and inside commands."""
        return glue(text, self.width - 10).replace("-", _HYPHEN)


def help_width() -> int | None:
    """Return the width of help in a terminal that is narrower than click expects; None for click's own choice."""
    width = terminal_width(sys.stdout)
    return width - 1 if width and width < _DEFAULT_WIDTH else None


PIPE_CLOSED = 141  # the exit code of a program whose reader closed the pipe: 128 + SIGPIPE
_CLOSED_PIPE_ERRORS = (
    {errno.EPIPE, errno.EINVAL} if os.name == "nt" else {errno.EPIPE}
)  # Windows calls a closed pipe invalid

# Replacements for characters that winhost writes and that old code pages of Windows lack.
_SPELLINGS = {"→": "->", "✓": "+", "✗": "x", "…": "...", "━": "=", "↻": "@", "·": "."}


class PipeClosed(Exception):
    """The reader of our output has closed it."""


def prepare_streams() -> None:
    """Prepare the standard streams, so that no command fails for a closed stream or a character that its encoding
    lacks.
    """
    codecs.register_error("winhost.spelled", _spell_out)
    if sys.stdin is None:  # closed by the parent process
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123 - for as long as we run
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - for as long as we run
        else:
            stream.reconfigure(errors="winhost.spelled")


def _spell_out(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_SPELLINGS.get(c) or c.encode("unicode_escape").decode("ascii") for c in missing), error.end


def is_closed_pipe(error: Exception) -> bool:
    """Tell whether an error means that the reader of our output has closed it."""
    is_pipe_error = isinstance(error, OSError) and error.errno in _CLOSED_PIPE_ERRORS and error.filename is None
    return is_pipe_error or isinstance(error, PipeClosed)


@contextmanager
def raise_pipe_closed() -> Iterator[None]:
    """Raise PipeClosed for a closed pipe inside the block, which click would turn into exit code 1."""
    try:
        yield
    except OSError as error:
        if is_closed_pipe(error):
            raise PipeClosed from error
        raise


def discard_output() -> None:
    """Discard the buffered output of closed streams, about which Python would complain when it flushes them at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _discard(stream)


def _discard(stream: TextIO) -> None:
    """Discard everything that is written to the stream from now on."""
    with suppress(OSError):  # a stream in memory, as in tests, has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class _UnfailingStream(io.BufferedIOBase):
    """A stream that never fails: when its reader is gone, it discards the output and calls `on_closed` with the
    reason.
    """

    def __init__(self, stream: TextIO, on_closed: Callable[[str], None]) -> None:
        self._stream = stream
        self._on_closed = on_closed

    def write(self, data: Any) -> int:
        try:
            self._stream.buffer.write(data)
            self._stream.buffer.flush()
        except OSError as error:
            _discard(self._stream)
            self._on_closed(error.strerror or str(error))
        except (RuntimeError, ValueError):
            pass  # this call is from a signal handler that interrupted another write, or the stream is closed
        return len(data)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()


@contextmanager
def unfailing_streams(on_closed: Callable[[str], None]) -> Iterator[None]:
    """Let every print inside the block succeed, because a run continues without a reader. on_closed: called with the
    reason when a reader is gone.
    """

    def wrap_stream(stream: TextIO) -> TextIO:
        if not hasattr(stream, "buffer"):
            return stream
        raw: Any = _UnfailingStream(stream, on_closed)
        return io.TextIOWrapper(raw, encoding=stream.encoding, errors=stream.errors, write_through=True)

    original = sys.stdout, sys.stderr
    for stream in original:
        stream.flush()
    sys.stdout, sys.stderr = map(wrap_stream, original)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = original


def supports_unicode(stream: TextIO) -> bool:
    """Tell whether the encoding of the stream has every character."""
    return codecs.lookup(stream.encoding).name.startswith("utf-")


def uses_colour() -> bool | None:
    """Tell whether to use colours; None: on a terminal only, as click does.

    Follows https://no-color.org and https://force-color.org: a variable counts if it is not empty. NO_COLOR has
    priority.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return False if is_dumb() else None


def is_dumb() -> bool:
    """Tell whether the terminal can show only lines of text."""
    return os.environ.get("TERM") in ("dumb", "unknown")


def escape_for_stream(text: str, stream: TextIO) -> str:
    """Return JSON for a stream: as it is in UTF-8, else in ASCII, which programs can also read as UTF-8."""
    if supports_unicode(stream):
        return text
    return re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], text)
