"""Break text for a terminal: between words, and in nothing that people copy or read as one thing."""

import os
import re
import sys
import textwrap
from collections.abc import Iterable
from typing import TextIO

import click

_GLUE = "\ue000"  # stands for a blank that is no place to break; `visible` lets no such letter through
_HYPHEN = "\ue001"  # likewise for a hyphen
_USUAL = 80  # columns where nobody tells how many there are

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
    """The width of the terminal behind a stream; None where it is none, but a file or a pipe."""
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
    """The text with its commands, options with their values and times in one piece, for whoever breaks it at blanks.

    longest: columns beyond which a piece is left as it is.
    """
    return _WHOLE.sub(lambda found: found[0].replace(" ", _GLUE) if len(found[0]) <= longest else found[0], text)


def unglued(text: str) -> str:
    """The text as it was."""
    return text.replace(_GLUE, " ")


def wrapped(text: str, hang: int, stream: TextIO, lead: str = "") -> str:
    """The lines of a paragraph for a stream, the further ones indented as the first and by `hang` more.

    What is longer than a line stands alone in one of its own, for the terminal to break: so it is copied whole.
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
        """click breaks at hyphens, too, and in the middle of what is longer than a line."""
        return glued(text, self.width - 10).replace("-", _HYPHEN)


def help_width() -> int | None:
    """The width of help in a terminal that is narrower than click expects; None for click's own choice."""
    width = columns(sys.stdout)
    return width - 1 if width and width < _USUAL else None
