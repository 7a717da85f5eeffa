"""How results leave: a table for people or one JSON document, on stdout; errors and progress on stderr."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from winhost.model.errors import WinhostError, visible, visible_json

WIDE = 160  # columns of tables that go to a file or a pipe


def say(text: str, **style: Any) -> None:
    """One line for people, styled as `click.secho` does. Text from hosts and files is data: it is shown, not obeyed."""
    click.secho(visible(text), **style)


def show_error(error: WinhostError, as_json: bool) -> None:
    """What is wrong, what it means, and the next command; as a document on stdout where JSON was asked for."""
    if as_json:
        print_json({"error": error_document(error)})
    else:
        click.echo(error_text(error), err=True)


def error_text(error: WinhostError) -> str:
    """Three short paragraphs: `error: …`, what it means, what to do."""
    follow = (text for text in (error.meaning, error.hint) if text)
    indented = "\n".join(f"  {visible(line)}" for text in follow for line in text.split("\n"))
    return f"error: {visible(error.what)}" + (f"\n{indented}" if indented else "")


def error_document(error: WinhostError) -> dict[str, Any]:
    """The same for programs."""
    return {
        "kind": type(error).__name__,
        "exit_code": int(error.exit_code),
        "what": error.what,
        "meaning": error.meaning,
        "hint": error.hint,
    }


def print_json(document: object) -> None:
    """One document and nothing else on stdout."""
    from winhost.model.documents import plain

    click.echo(visible_json(plain(document), indent=2))


def print_line(document: object) -> None:
    """One JSON document on one line."""
    from winhost.model.documents import plain

    click.echo(visible_json(plain(document)))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A plain table, in the terminal's width and colours only on one; text from hosts is data and never markup."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(*columns, box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(visible(str(cell))) for cell in row))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
    with console.capture() as captured:
        console.print(made)
    for line in captured.get().strip("\n").splitlines():
        if line.strip():
            click.echo(line.rstrip())


def show_results(
    as_json: bool, results: Sequence[Mapping[str, Any]], human: Callable[[Mapping[str, Any]], None]
) -> None:
    """The results of several hosts: a document of all, or each for people, errors on stderr."""
    if as_json:
        print_json({"results": [_result_document(result) for result in results]})
        return
    for result in results:
        error = result.get("error")
        if isinstance(error, WinhostError):
            click.echo(error_text(error), err=True)
        else:
            human(result)


def _result_document(result: Mapping[str, Any]) -> dict[str, Any]:
    error = result.get("error")
    told = {"error": error_document(error)} if isinstance(error, WinhostError) else {}
    return {**{name: value for name, value in result.items() if name != "error"}, **told}
