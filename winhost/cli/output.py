"""Paragraphs and errors for people, and files that they named."""

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from winhost.cli.line_breaks import wrapped
from winhost.cli.overwrite import Kind, refuse_other_kind
from winhost.cli.shells import command_line, own_shell
from winhost.model.errors import ErrorDocument, ErrorResult, WinhostError, visible
from winhost.model.files import write_whole

_OF_HOSTS = re.compile(
    r"\bwinhost (?:detect|assess|plan|apply|resume|rollback|verify|up|down|open|chat|status|boot|probe|serve \w+"
    r"|host \w+)(?![\w-])"
)

_NAMING = ("NotAvailable", "NotFound", "RemoteError")  # errors whose words may name a resource as programs do


def say(text: str, *, hang: int = 0, err: bool = False, **style: Any) -> None:
    """A paragraph for people, styled as `click.secho` does. Text from hosts and files is data: it is shown, not obeyed.

    It is broken into lines as `line_breaks.wrapped` does.
    """
    lines = wrapped(visible(text), hang, sys.stderr if err else sys.stdout)
    click.echo(click.style(lines, **style) if style else lines, err=err)


def show_next(words: Iterable[str], fleet_file: Path | None = None) -> None:
    """words: after `winhost`. The command has a line of its own, which no terminal breaks when it is copied."""
    fleet = ("--fleet", str(fleet_file)) if fleet_file else ()
    click.echo("Next:")
    click.echo(visible(f"  {command_line(('winhost', *words, *fleet), own_shell())}"))


def show_error_text(error: WinhostError, host: str = "", fleet: str | None = None) -> None:
    """Print an error on stderr, in the width of its terminal. host: whose it is, of several; fleet: see
    `with_fleet`.
    """
    for line in with_fleet(error_text(error, host), fleet).split("\n"):
        say(line, hang=2 if line.startswith("  ") else 0, err=True)


def with_fleet(text: str, fleet: str | None = None) -> str:
    """Add the fleet file that was typed to each command in a text: they name hosts and runs of it. fleet: that file,
    where no command is under way any more that knows it.
    """
    if (running := click.get_current_context(silent=True)) is not None:
        fleet = str(file) if (file := running.params.get("fleet_file")) else fleet
    if fleet is None or "--fleet" in text:
        return text
    words = visible(command_line(("--fleet", fleet), own_shell()))
    return _OF_HOSTS.sub(lambda found: f"{found[0]} {words}", text)


def error_text(error: WinhostError, host: str = "") -> str:
    """Three short paragraphs: `error: …`, what it means, what to do. The host comes first, unless it does already."""
    follow = (text for text in (error.meaning, error.hint) if text)
    indented = "\n".join(f"  {visible(line)}" for text in follow for line in text.split("\n"))
    what = what_happened(error)
    named = not host or re.match(rf"{re.escape(host)}(?![\w-])", what)
    what = what if named else f"{host}: {what}"
    return f"error: {visible(what)}" + (f"\n{indented}" if indented else "")


def what_happened(error: WinhostError) -> str:
    """Describe what happened, with resources called by their titles."""
    if error.code not in _NAMING:
        return error.what
    from winhost.engine.failures import in_words  # loads every resource, which other errors do not name

    return in_words(error)


def failed(error: WinhostError, host: str | None = None) -> ErrorResult:
    """An error for programs, in the words that people get. The host is asked of the error where it is not given."""
    document = ErrorDocument(error.code, int(error.exit_code), what_happened(error), error.meaning, error.hint)
    return ErrorResult(host or error.host, document)


def write_file(path: Path, text: str | Iterable[str], kind: Kind, force: bool) -> None:
    """A file that the user named, whole or in pieces.

    Raises UsageError (OtherKind), and OSError as `write_whole` does.
    """
    refuse_other_kind(path, kind, force)
    write_whole(path, [text] if isinstance(text, str) else text)
