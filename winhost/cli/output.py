"""How results leave: a table for people or one JSON document, on stdout; errors and progress on stderr."""

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winhost.cli.line_breaks import columns as columns_of
from winhost.cli.line_breaks import glued, unglued, wrapped
from winhost.cli.overwrite import Kind, refuse_other_kind
from winhost.cli.streams import spelled_in_json
from winhost.model.errors import WinhostError, failed, visible, visible_json
from winhost.model.files import write_whole

if TYPE_CHECKING:
    from rich.text import Text

    from winhost.cli.envelope import Form

WIDE = 160  # columns of tables that go to a file or a pipe
_TRAILING = re.compile(r"(?: |\x1b\[[\d;]*m)+$")  # blanks, and changes of colour among them
_BETWEEN = 3  # blanks between two columns of a table


def say(text: str, *, hang: int = 0, err: bool = False, **style: Any) -> None:
    """A paragraph for people, styled as `click.secho` does. Text from hosts and files is data: it is shown, not obeyed.

    It is broken into lines as `lines.wrapped` does.
    """
    lines = wrapped(visible(text), hang, sys.stderr if err else sys.stdout)
    click.echo(click.style(lines, **style) if style else lines, err=err)


def show_error(error: WinhostError, form: "Form | None") -> None:
    """What is wrong, what it means, and the next command; as a document on stdout where one was asked for."""
    from winhost.cli.envelope import answer

    if form:
        answer("error", [failed(error)], form)
    else:
        show_error_text(error)


def show_error_text(error: WinhostError, host: str = "") -> None:
    """On stderr, in the width of its terminal. host: whose it is, of several."""
    for line in error_text(error, host).split("\n"):
        say(line, hang=2 if line.startswith("  ") else 0, err=True)


def error_text(error: WinhostError, host: str = "") -> str:
    """Three short paragraphs: `error: …`, what it means, what to do. The host comes first, unless it does already."""
    follow = (text for text in (error.meaning, error.hint) if text)
    indented = "\n".join(f"  {visible(line)}" for text in follow for line in text.split("\n"))
    named = not host or re.match(rf"{re.escape(host)}(?![\w-])", error.what)
    what = error.what if named else f"{host}: {error.what}"
    return f"error: {visible(what)}" + (f"\n{indented}" if indented else "")


def print_json(document: object) -> None:
    """A document that is no answer but a thing of its own, such as a schema, and nothing else on stdout."""
    _echo_json(document, indent=2)


def print_line(document: object) -> None:
    """One JSON document on one line."""
    _echo_json(document)


def _echo_json(document: object, indent: int | None = None) -> None:
    from winhost.model.documents import plain

    click.echo(spelled_in_json(visible_json(plain(document), indent=indent), sys.stdout))


def write_file(path: Path, text: str | Iterable[str], kind: Kind, force: bool) -> None:
    """A file that the user named, whole or in pieces.

    Raises UsageError (OtherKind), and OSError as `write_whole` does.
    """
    refuse_other_kind(path, kind, force)
    write_whole(path, [text] if isinstance(text, str) else text)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A plain table, in the terminal's width and colours only on one; text from hosts is data and never markup.

    No word is ever broken: where a terminal has no room for the longest of each column each row is a paragraph, and a
    file or a pipe gets wider lines.
    """
    from rich.cells import cell_len
    from rich.text import Text

    cells = [[_cell(cell) for cell in row] for row in rows]
    texts = [[Text(name), *(row[place] for row in cells)] for place, name in enumerate(columns)]
    words = [max((cell_len(word) for text in column for word in text.plain.split()), default=0) for column in texts]
    between = _BETWEEN * len(columns)
    room = columns_of(sys.stdout) or max(WIDE, sum(words) + between)
    if sum(words) + between > room:
        _paragraphs(columns, [[unglued(cell.plain) for cell in row] for row in cells], title)
    else:
        whole = [max(text.cell_len for text in column) for column in texts]
        _grid(columns, cells, title, room, _shared(words, whole, room - between))


def _cell(cell: object) -> "Text":
    from rich.text import Text

    return cell if isinstance(cell, Text) else Text(glued(visible(str(cell))))


def _grid(
    columns: Sequence[str], rows: "Iterable[Sequence[Text]]", title: str | None, room: int, widths: Iterable[int]
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    # Always with colours: click takes them away again where nobody wants them.
    console = Console(highlight=False, width=room, force_terminal=True, color_system="standard", no_color=False)
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


def _shared(least: Sequence[int], most: Sequence[int], room: int) -> list[int]:
    """Widths of columns: what is left of the room goes to the modest ones first, to the others in equal parts."""
    widths = [*least]
    left = room - sum(least)
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
