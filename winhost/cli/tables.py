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
from winhost.cli.terminal import glue, unglue
from winhost.cli.terminal import terminal_width as columns_of
from winhost.core.answers import Json
from winhost.model.errors import visible, visible_json
from winhost.model.packed import describe_packed
from winhost.model.units import MiB, size
from winhost.resources.windows.vms import assigned_vm

_KEY = re.compile(r"(?<!\S)([A-Za-z0-9+/]{8})[A-Za-z0-9+/]{48,}([A-Za-z0-9+/]{4}=*)(?!\S)")
_HASH = re.compile(r"(?<![0-9A-Za-z])([0-9a-f]{8})[0-9a-f]{28,}([0-9a-f]{4})(?![0-9A-Za-z])")
_GUID = re.compile(r"(?<!\S)([0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?!\S)")

_MAX_HASHES = 3  # that a list shows; more entries are counted


def format_time(time: str) -> str:
    """Write a time of a journal, to the minute."""
    return f"{time[:16].replace('T', ' ')} UTC"


def format_value(value: Json) -> str:
    """Write a value for people: a size in GiB, a text as its number of lines, a hash as its two ends."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and value >= MiB and value % MiB == 0:
        return size(value)
    if isinstance(value, str) and (vm := assigned_vm(value)):
        return f"assigned to VM {vm[:8]}…"
    if isinstance(value, str) and (lines := value.count("\n")):
        return f"{lines} line{'s' if lines > 1 else ''}"
    if isinstance(value, str) and (packed := describe_packed(value)):
        return packed
    if isinstance(value, list):
        texts = [*map(format_value, value)]
        has_hashes = len(texts) > _MAX_HASHES and any("…" in each for each in texts)
        return f"{len(texts)} entries" if has_hashes else ", ".join(texts) or "none"
    if isinstance(value, dict) and all("\n" in str(text) for text in value.values()):
        return f"{len(value)} file{'s' if len(value) > 1 else ''}"
    return "none" if value is None else shorten(visible(str(value)))


def format_full_value(value: Json) -> str:
    """Write a value in full, except packed data, which is unreadable."""
    if isinstance(value, str) and (packed := describe_packed(value)):
        return packed
    return visible(value) if isinstance(value, str) else visible_json(value)


def format_pair(first: Json, second: Json, format_: Callable[[Json], str] = format_value) -> tuple[str, str]:
    """Write two values of one property, in full if their short forms are equal."""
    texts = format_(first), format_(second)
    return (format_full_value(first), format_full_value(second)) if texts[0] == texts[1] and first != second else texts


def shorten(text: str) -> str:
    """Shorten hashes, GUIDs and public keys for people."""
    return _HASH.sub(r"\1…\2", _KEY.sub(r"\1…\2", _GUID.sub(r"\1…", text)))


FILE_WIDTH = 160  # characters, of tables that go to a file or a pipe
_TRAILING = re.compile(r"(?: |\x1b\[[\d;]*m)+$")  # blanks, also with colour codes between them
_COLUMN_GAP = 3  # blanks between two columns of a table


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """Print a table, with colours on a terminal only. Text from hosts is never interpreted as markup.

    Words are never broken: if a terminal is too narrow for the longest word of each column, each row becomes a
    paragraph; a file or a pipe gets wider lines.
    """
    cells = [[cell if isinstance(cell, Text) else Text(glue(visible(str(cell)))) for cell in row] for row in rows]
    texts = [[Text(name), *(row[index] for row in cells)] for index, name in enumerate(columns)]
    min_widths = [
        max((cell_len(word) for text in column for word in text.plain.split()), default=0) for column in texts
    ]
    gaps = _COLUMN_GAP * len(columns)
    available = columns_of(sys.stdout) or max(FILE_WIDTH, sum(min_widths) + gaps)
    if sum(min_widths) + gaps > available:
        _paragraphs(columns, [[unglue(cell.plain) for cell in row] for row in cells], title)
    else:
        max_widths = [max(text.cell_len for text in column) for column in texts]
        _grid(columns, cells, title, available, _share_width(min_widths, max_widths, available - gaps))


def _grid(
    columns: Sequence[str], rows: Iterable[Sequence[Text]], title: str | None, available: int, widths: Iterable[int]
) -> None:
    # Always with colours: click removes them for a stream without colours.
    console = Console(
        emoji=False, highlight=False, width=available, force_terminal=True, color_system="standard", no_color=False
    )
    grid = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for name, width in zip(columns, widths, strict=True):
        grid.add_column(name, overflow="fold", width=width)
    for row in rows:
        grid.add_row(*row)
    with console.capture() as captured:
        console.print(grid)
    for line in unglue(captured.get()).strip("\n").splitlines():
        if click.unstyle(line).strip():
            click.echo(_TRAILING.sub(lambda end: end[0].replace(" ", ""), line))


def _share_width(min_widths: Sequence[int], max_widths: Sequence[int], available: int) -> list[int]:
    """Return the widths of columns. Those that need the least above their minimum get it first, and the others get
    equal parts of the remaining width.
    """
    widths = [*min_widths]
    remaining = available - sum(min_widths)
    by_need = sorted(range(len(max_widths)), key=lambda index: max_widths[index] - min_widths[index])
    for position, index in enumerate(by_need):
        extra = min(max_widths[index] - min_widths[index], remaining // (len(max_widths) - position))
        widths[index] += extra
        remaining -= extra
    return widths


def _paragraphs(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None) -> None:
    first, *others = columns
    if title:
        say(title, italic=True)
    for head, *values in rows:
        say(f" {first} {head}" if first else f" {head}", hang=2)
        for name, text in zip(others, values, strict=True):
            if text:
                say(f"   {name}: {text}" if name else f"   {text}", hang=2)
