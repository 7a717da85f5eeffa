"""Standard streams: the width of a terminal, line breaks, characters that it lacks, and closed pipes."""

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

_GLUE = "\ue000"  # stands for a blank that is no place to break; `visible` lets no such letter through
_HYPHEN = "\ue001"  # likewise for a hyphen
_USUAL = 80  # columns, if the terminal does not tell

_VALUE = r"[^\s-]\S*"
_OPTION = rf"--?[A-Za-z][\w-]*(?: {_VALUE})?"
_CAPITAL = r"\S*[^a-z\s]\S*"  # what is no plain word of a sentence: RUN, gpu-01, plan.json, '@lab'
_OURS = (
    rf"winhost (?:(?:facts|host|install|lab|lint|models|render|serve|workload) )?[a-z]+(?: (?:{_OPTION}|{_CAPITAL}))*"
)
_THEIRS = (
    rf"(?:[A-Z][a-z]+-[A-Z]\w+|wsl(?:\.exe)?|nvidia-smi|bcdedit)(?: (?:{_OPTION}|\||{_CAPITAL}|[a-z]+(?=[.,;)]|$)))+"
)
_TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d\S*"
_WHOLE = re.compile(rf"(?<![^\s(\[`'])(?:{_OURS}|{_THEIRS}|{_OPTION}|{_TIME})")


def columns(stream: TextIO) -> int | None:
    """Return the width of the terminal behind a stream; None for a file or a pipe."""
    if not stream.isatty():
        return None
    columns_set = os.environ.get("COLUMNS", "")
    if columns_set.isdecimal() and int(columns_set):
        return int(columns_set)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL
    except (OSError, ValueError):
        return _USUAL


def glued(text: str, longest: int = sys.maxsize) -> str:
    """Keep commands, options with values, and times in one line. longest: columns beyond which a piece may break."""
    return _WHOLE.sub(lambda found: found[0].replace(" ", _GLUE) if len(found[0]) <= longest else found[0], text)


def unglued(text: str) -> str:
    """Undo `glued`."""
    return text.replace(_GLUE, " ")


def wrapped(text: str, hang: int, stream: TextIO, lead: str = "") -> str:
    """Break a paragraph into lines for a stream, the further ones indented by `hang` more than the first.

    A piece longer than a line gets a line of its own, which the terminal breaks: so it can be copied whole.
    A file or a pipe gets one line, which can be searched. lead: what every line begins with.
    """
    width = columns(stream)
    if width is None or len(lead + text) <= width:
        return lead + text
    indent = " " * (len(text) - len(text.lstrip(" ")) + hang)
    lines = textwrap.wrap(
        glued(text),
        max(width - len(lead), 1),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
    return unglued("\n".join(lead + line for line in lines))


class HelpFormatter(click.HelpFormatter):
    """Help for terminals of any width: narrow ones get each explanation below its option."""

    def write_text(self, text: str) -> None:
        super().write_text(self._whole(re.sub(r"(?<=\S)\n *(?=\S)", " ", text)))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        if self.width < 2 * (col_max + col_spacing):
            col_max = 4
        super().write_dl([(term, self._whole(text)) for term, text in rows], col_max, col_spacing)

    def getvalue(self) -> str:
        return unglued(super().getvalue()).replace(_HYPHEN, "-")

    def _whole(self, text: str) -> str:
        """Keep click from breaking at hyphens, and inside what is longer than a line."""
        return glued(text, self.width - 10).replace("-", _HYPHEN)


def help_width() -> int | None:
    """The width of help in a terminal that is narrower than click expects; None for click's own choice."""
    width = columns(sys.stdout)
    return width - 1 if width and width < _USUAL else None


PIPE_CLOSED = 141  # the exit code of a program whose reader closed the pipe: 128 + SIGPIPE
_GONE = {errno.EPIPE, errno.EINVAL} if os.name == "nt" else {errno.EPIPE}  # Windows calls a closed pipe invalid

# Characters that winhost writes and old code pages of Windows lack. Others come from hosts and files.
_SPELLED = {"→": "->", "✓": "+", "✗": "x", "…": "...", "━": "=", "↻": "@", "·": "."}


class PipeClosed(Exception):
    """The reader of our output has closed it."""


def prepare_streams() -> None:
    """Keep characters that an encoding lacks, and closed streams, from failing a command."""
    codecs.register_error("winhost.spelled", _spelled)
    if sys.stdin is None:  # our parent process closed it: no answer will come
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115, PTH123 - for as long as we run
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # our parent process closed it: the output is not wanted
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - for as long as we run
        else:
            stream.reconfigure(errors="winhost.spelled")


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_SPELLED.get(c) or c.encode("unicode_escape").decode("ascii") for c in lacking), error.end


def is_closed_pipe(error: Exception) -> bool:
    """Tell whether an error means that the reader of our output has closed it."""
    pipe = isinstance(error, OSError) and error.errno in _GONE and error.filename is None
    return pipe or isinstance(error, PipeClosed)


@contextmanager
def closed_pipes() -> Iterator[None]:
    """Raise PipeClosed for a closed pipe: click would end with exit code 1 before we see it."""
    try:
        yield
    except OSError as error:
        if is_closed_pipe(error):
            raise PipeClosed from error
        raise


def let_go_of_streams() -> None:
    """Discard what is left for a closed stream, which Python would flush at exit and complain."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _let_go(stream)


def _let_go(stream: TextIO) -> None:
    """Discard whatever is written to the stream from here on."""
    with suppress(OSError):  # in memory, as tests have it
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class _Lasting(io.BufferedIOBase):
    """A stream that never fails: it discards output that has no reader, and calls `gone` with the reason."""

    def __init__(self, stream: TextIO, gone: Callable[[str], None]) -> None:
        self._stream = stream
        self._gone = gone

    def write(self, data: Any) -> int:
        try:
            self._stream.buffer.write(data)
            self._stream.buffer.flush()
        except OSError as error:
            _let_go(self._stream)
            self._gone(error.strerror or str(error))
        except (RuntimeError, ValueError):
            pass  # a signal's handler interrupted another write, or the stream is closed
        return len(data)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()


@contextmanager
def lasting_streams(gone: Callable[[str], None]) -> Iterator[None]:
    """Let no print in the block fail, because a run goes on without readers. `gone` is called with the reason."""

    def lasting(stream: TextIO) -> TextIO:
        if not hasattr(stream, "buffer"):
            return stream
        kept: Any = _Lasting(stream, gone)
        return io.TextIOWrapper(kept, encoding=stream.encoding, errors=stream.errors, write_through=True)

    before = sys.stdout, sys.stderr
    for stream in before:
        stream.flush()
    sys.stdout, sys.stderr = map(lasting, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def speaks_unicode(stream: TextIO) -> bool:
    """Tell whether the stream takes every character."""
    return codecs.lookup(stream.encoding).name.startswith("utf-")


def colour() -> bool | None:
    """Tell whether to use colours; None: on a terminal only, as click does.

    https://no-color.org and https://force-color.org: set and not empty. Whoever asks for none always gets none.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return False if is_dumb() else None


def is_dumb() -> bool:
    """Tell whether the terminal shows nothing but lines of text."""
    return os.environ.get("TERM") in ("dumb", "unknown")


def spelled_in_json(text: str, stream: TextIO) -> str:
    """JSON for a stream: programs read it as UTF-8, so elsewhere it is plain ASCII, which is the same in both."""
    if speaks_unicode(stream):
        return text
    return re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], text)
