"""The answer of every command to programs: `{"schema": "winhost.<kind>/<n>", "results": [...]}`, written result by
result.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click
import yaml

from winhost.cli.formats import schema_of
from winhost.cli.options import Form
from winhost.cli.output import failed, say, show_error_text
from winhost.cli.tables import table
from winhost.cli.terminal import speaks_unicode, spelled_in_json
from winhost.model.documents import plain
from winhost.model.errors import WinhostError, visible, visible_json

T = TypeVar("T")


@contextmanager
def answering(kind: str, form: Form = "json") -> Iterator[Callable[[object], None]]:
    """Write one document to stdout. Yields the function that writes a result: a dataclass, or data as JSON has it.

    Nothing is kept of a result, so that a document may be larger than memory. An error of ours that comes after the
    first result becomes the last one, and the exit code; before that it is raised.
    """
    written = 0

    def add(result: object) -> None:
        nonlocal written
        click.echo(_FORMS[form].item(schema_of(kind), plain(result), first=not written), nl=False)
        written += 1

    try:
        yield add
    except WinhostError as error:
        if not written:
            raise
        add(failed(error))
        click.echo(_FORMS[form].end(schema_of(kind), empty=False), nl=False)
        raise click.exceptions.Exit(int(error.exit_code)) from error
    click.echo(_FORMS[form].end(schema_of(kind), empty=not written), nl=False)


def answer(kind: str, results: Iterable[object], form: Form = "json") -> None:
    """Write a document with these results."""
    with answering(kind, form) as add:
        for result in results:
            add(result)


def show_results(
    kind: str,
    shape: str,
    results: "Iterable[tuple[str, T | WinhostError]]",
    human: Callable[[T], object],
    *,
    document: Callable[[T], object] = lambda result: result,
    code: Callable[[T], int] = lambda _: 0,
    names: Callable[[T], Iterable[str]] | None = None,
    alone: bool = False,
) -> int:
    """Show the result of each host or file, by name, as it comes: for programs, or for people with errors on stderr.
    Returns the exit code, which is the highest of all.

    shape: json, yaml, name, or anything else for people; document: what programs get of a result; code: its exit code;
    names: what -o name prints of a result, by default its name; alone: there is only one, so that its name need not
    come before an error.
    """
    codes = [0]

    def counted() -> "Iterator[tuple[str, T | WinhostError]]":
        for name, result in results:
            codes.append(int(result.exit_code if isinstance(result, WinhostError) else code(result)))
            yield name, result

    if shape in ("json", "yaml"):
        named = (failed(each, name) if isinstance(each, WinhostError) else document(each) for name, each in counted())
        answer(kind, named, "yaml" if shape == "yaml" else "json")
        return max(codes)
    for name, result in counted():
        if isinstance(result, WinhostError):
            show_error_text(result, "" if alone else name)
        elif shape == "name":
            for each in names(result) if names else (name,):
                click.echo(visible(each))
        else:
            human(result)
    return max(codes)


def show_list(
    kind: str, shape: str, rows: Sequence[Any], columns: Sequence[str], wide: Sequence[str] = (), none: str = ""
) -> None:
    """Show results as rows. columns: fields to show, of which the first is the name; wide: fields to add for -o wide;
    none: what to say if there are no rows.
    """
    fields = (*columns, *wide) if shape == "wide" else columns
    if shape in ("json", "yaml", "name"):
        show_results(kind, shape, ((getattr(row, columns[0]), row) for row in rows), lambda _: None)
    elif rows or not none:
        values = ([getattr(row, field) for field in fields] for row in rows)
        table(fields, ([", ".join(map(str, v)) if isinstance(v, tuple) else v or "" for v in row] for row in values))
    else:
        say(none)


def print_json(document: object, indent: int | None = None) -> None:
    """A document without an envelope, such as a schema or a line of --jsonl, on stdout."""
    click.echo(spelled_in_json(visible_json(plain(document), indent=indent), sys.stdout))


class _Json:
    @staticmethod
    def item(schema: str, result: Any, *, first: bool) -> str:
        text = spelled_in_json(visible_json(result, indent=2), sys.stdout).replace("\n", "\n    ")
        return (f'{{\n  "schema": "{schema}",\n  "results": [' if first else ",") + f"\n    {text}"

    @staticmethod
    def end(schema: str, *, empty: bool) -> str:
        return f'{{\n  "schema": "{schema}",\n  "results": []\n}}\n' if empty else "\n  ]\n}\n"


class _Yaml:
    @staticmethod
    def item(schema: str, result: Any, *, first: bool) -> str:
        return (f"schema: {schema}\nresults:\n" if first else "") + _Yaml.text([result])

    @staticmethod
    def end(schema: str, *, empty: bool) -> str:
        return f"schema: {schema}\nresults: []\n" if empty else ""

    @staticmethod
    def text(value: Any) -> str:
        """Write YAML in the characters of every language, except those that move a cursor or that stdout lacks."""
        how: dict[str, Any] = {"sort_keys": False, "width": _NEVER_FOLDED}
        try:
            text: str = yaml.dump(
                value, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), allow_unicode=True, **how
            )
        except UnicodeEncodeError:  # half a character, which only the slow one writes
            text = yaml.dump(value, Dumper=yaml.SafeDumper, **how)
        if speaks_unicode(sys.stdout) and text.replace("\n", "").isprintable():
            return text
        return str(yaml.dump(value, Dumper=yaml.SafeDumper, **how))


_NEVER_FOLDED = (1 << 31) - 1  # columns
_FORMS: Mapping[Form, type[_Json | _Yaml]] = {"json": _Json, "yaml": _Yaml}
