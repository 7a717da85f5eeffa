"""Print tables in the terminal's width, and format values of properties."""

import re
import sys
from collections.abc import Callable, Iterable, Sequence

import click
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from winhost.cli.output import say
from winhost.cli.terminal import columns as columns_of
from winhost.cli.terminal import glued, unglued
from winhost.core.answers import Json
from winhost.model.errors import visible, visible_json
from winhost.model.packed import describe_packed
from winhost.model.units import MiB, size
from winhost.resources.windows.vms import owner

_KEY = re.compile(r"(?<!\S)([A-Za-z0-9+/]{8})[A-Za-z0-9+/]{48,}([A-Za-z0-9+/]{4}=*)(?!\S)")
_HASH = re.compile(r"(?<![0-9A-Za-z])([0-9a-f]{8})[0-9a-f]{28,}([0-9a-f]{4})(?![0-9A-Za-z])")
_GUID = re.compile(r"(?<!\S)([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?!\S)")

_MOST_HASHES = 3  # in a list


def moment(time: str) -> str:
    """Write a time of a journal, to the minute."""
    return f"{time[:16].replace('T', ' ')} UTC"


def format_value(value: Json) -> str:
    """Write a value for people: sizes in GiB, the number of lines of a text, the ends of a hash."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and value >= MiB and value % MiB == 0:
        return size(value)
    if isinstance(value, str) and (vm := owner(value)):
        return f"assigned to VM {vm[:8]}…"
    if isinstance(value, str) and (lines := value.count("\n")):
        return f"{lines} line{'s' if lines > 1 else ''}"
    if isinstance(value, str) and (packed := describe_packed(value)):
        return packed
    if isinstance(value, list):
        shown = [*map(format_value, value)]
        hashed = len(shown) > _MOST_HASHES and any("…" in each for each in shown)
        return f"{len(shown)} entries" if hashed else ", ".join(shown) or "none"
    if isinstance(value, dict) and all("\n" in str(text) for text in value.values()):
        return f"{len(value)} file{'s' if len(value) > 1 else ''}"
    return "none" if value is None else shortened(visible(str(value)))


def format_full_value(value: Json) -> str:
    """Write a value in full, except packed data, which is unreadable."""
    if isinstance(value, str) and (packed := describe_packed(value)):
        return packed
    return visible(value) if isinstance(value, str) else visible_json(value)


def format_two(one: Json, other: Json, format_: Callable[[Json], str] = format_value) -> tuple[str, str]:
    """Write two values of one property, in full if they would look the same otherwise."""
    texts = format_(one), format_(other)
    return (format_full_value(one), format_full_value(other)) if texts[0] == texts[1] and one != other else texts


def shortened(text: str) -> str:
    """Shorten hashes, GUIDs and public keys for people; --json and files have them whole."""
    return _HASH.sub(r"\1…\2", _KEY.sub(r"\1…\2", _GUID.sub(r"\1…", text)))


WIDE = 160  # columns of tables that go to a file or a pipe
_TRAILING = re.compile(r"(?: |\x1b\[[\d;]*m)+$")  # blanks, and changes of colour among them
_BETWEEN = 3  # blanks between two columns of a table


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """Print a plain table, with colours on a terminal only. Text from hosts is data and never markup.

    No word is ever broken: if a terminal has no room for the longest word of each column, each row becomes a paragraph,
    and a file or a pipe gets wider lines.
    """
    cells = [[cell if isinstance(cell, Text) else Text(glued(visible(str(cell)))) for cell in row] for row in rows]
    texts = [[Text(name), *(row[index] for row in cells)] for index, name in enumerate(columns)]
    words = [max((cell_len(word) for text in column for word in text.plain.split()), default=0) for column in texts]
    between = _BETWEEN * len(columns)
    available = columns_of(sys.stdout) or max(WIDE, sum(words) + between)
    if sum(words) + between > available:
        _paragraphs(columns, [[unglued(cell.plain) for cell in row] for row in cells], title)
    else:
        whole = [max(text.cell_len for text in column) for column in texts]
        _grid(columns, cells, title, available, _shared(words, whole, available - between))


def _grid(
    columns: Sequence[str], rows: Iterable[Sequence[Text]], title: str | None, available: int, widths: Iterable[int]
) -> None:
    # Always with colours: click removes them where they are not wanted.
    console = Console(
        emoji=False, highlight=False, width=available, force_terminal=True, color_system="standard", no_color=False
    )
    made = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for name, width in zip(columns, widths, strict=True):
        made.add_column(name, overflow="fold", width=width)
    for row in rows:
        made.add_row(*row)
    with console.capture() as captured:
        console.print(made)
    for line in unglued(captured.get()).strip("\n").splitlines():
        if click.unstyle(line).strip():
            click.echo(_TRAILING.sub(lambda end: end[0].replace(" ", ""), line))


def _shared(least: Sequence[int], most: Sequence[int], available: int) -> list[int]:
    """Share out the width: columns that need little more get it first, and the others equal parts of the rest."""
    widths = [*least]
    left = available - sum(least)
    modest = sorted(range(len(most)), key=lambda index: most[index] - least[index])
    for before, index in enumerate(modest):
        more = min(most[index] - least[index], left // (len(most) - before))
        widths[index] += more
        left -= more
    return widths


def _paragraphs(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None) -> None:
    first, *others = columns
    if title:
        say(title, italic=True)
    for head, *rest in rows:
        say(f" {first} {head}" if first else f" {head}", hang=2)
        for name, text in zip(others, rest, strict=True):
            if text:
                say(f"   {name}: {text}" if name else f"   {text}", hang=2)
