"""Tables for people, in the terminal's width."""

import re
import sys
from collections.abc import Iterable, Sequence

import click
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from winhost.cli.output import say
from winhost.cli.terminal import columns as columns_of
from winhost.cli.terminal import glued, unglued
from winhost.model.errors import visible

WIDE = 160  # columns of tables that go to a file or a pipe
_TRAILING = re.compile(r"(?: |\x1b\[[\d;]*m)+$")  # blanks, and changes of colour among them
_BETWEEN = 3  # blanks between two columns of a table


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A plain table, in the terminal's width and colours only on one; text from hosts is data and never markup.

    No word is ever broken: where a terminal has no room for the longest of each column each row is a paragraph, and a
    file or a pipe gets wider lines.
    """
    cells = [[_cell(cell) for cell in row] for row in rows]
    texts = [[Text(name), *(row[place] for row in cells)] for place, name in enumerate(columns)]
    words = [max((cell_len(word) for text in column for word in text.plain.split()), default=0) for column in texts]
    between = _BETWEEN * len(columns)
    available = columns_of(sys.stdout) or max(WIDE, sum(words) + between)
    if sum(words) + between > available:
        _paragraphs(columns, [[unglued(cell.plain) for cell in row] for row in cells], title)
    else:
        whole = [max(text.cell_len for text in column) for column in texts]
        _grid(columns, cells, title, available, _shared(words, whole, available - between))


def _cell(cell: object) -> Text:
    return cell if isinstance(cell, Text) else Text(glued(visible(str(cell))))


def _grid(
    columns: Sequence[str], rows: Iterable[Sequence[Text]], title: str | None, available: int, widths: Iterable[int]
) -> None:
    # Always with colours: click takes them away again where nobody wants them.
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
    """Widths of columns: what is left of the room goes to the modest ones first, to the others in equal parts."""
    widths = [*least]
    left = available - sum(least)
    modest = sorted(range(len(most)), key=lambda place: most[place] - least[place])
    for before, place in enumerate(modest):
        more = min(most[place] - least[place], left // (len(most) - before))
        widths[place] += more
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
