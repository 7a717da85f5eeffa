"""Print the results of commands, for programs as `{"schema": "winhost.<kind>/<n>", "results": [...]}`, result by
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
from winhost.cli.output import error_result, say, show_error_text
from winhost.cli.tables import table
from winhost.cli.terminal import escape_for_stream, supports_unicode
from winhost.model.documents import plain
from winhost.model.errors import WinhostError, visible, visible_json

T = TypeVar("T")


@contextmanager
def open_document(kind: str, form: Form = "json") -> Iterator[Callable[[object], None]]:
    """Write one document to stdout. Yields the function that writes a result, which is a dataclass or JSON data.

    Results are not kept, so a document may be larger than memory. A WinhostError before the first result is raised; a
    later one becomes the last result and determines the exit code.
    """
    count = 0

    def write_result(result: object) -> None:
        nonlocal count
        click.echo(_FORMS[form].item(schema_of(kind), plain(result), first=not count), nl=False)
        count += 1

    try:
        yield write_result
    except WinhostError as error:
        if not count:
            raise
        write_result(error_result(error))
        click.echo(_FORMS[form].end(schema_of(kind), empty=False), nl=False)
        raise click.exceptions.Exit(int(error.exit_code)) from error
    click.echo(_FORMS[form].end(schema_of(kind), empty=not count), nl=False)


def print_document(kind: str, results: Iterable[object], form: Form = "json") -> None:
    """Print a document with these results."""
    with open_document(kind, form) as add:
        for result in results:
            add(result)


def show_results(
    kind: str,
    shape: str,
    results: "Iterable[tuple[str, T | WinhostError]]",
    show: Callable[[T], object],
    *,
    document: Callable[[T], object] = lambda result: result,
    code: Callable[[T], int] = lambda _: 0,
    names: Callable[[T], Iterable[str]] | None = None,
    single: bool = False,
) -> int:
    """Show the result of each host or file, by name, as it comes: for programs, or for people with errors on stderr.
    Returns the exit code, which is the highest of all.

    shape: json, yaml, name, or anything else for people; document: what programs get of a result; code: its exit code;
    names: what -o name prints of a result, by default its name; single: there is only one, so that its name need not
    come before an error.
    """
    codes = [0]

    def with_codes() -> "Iterator[tuple[str, T | WinhostError]]":
        for name, result in results:
            codes.append(int(result.exit_code if isinstance(result, WinhostError) else code(result)))
            yield name, result

    if shape in ("json", "yaml"):
        named = (
            error_result(each, name) if isinstance(each, WinhostError) else document(each)
            for name, each in with_codes()
        )
        print_document(kind, named, "yaml" if shape == "yaml" else "json")
        return max(codes)
    for name, result in with_codes():
        if isinstance(result, WinhostError):
            show_error_text(result, "" if single else name)
        elif shape == "name":
            for each in names(result) if names else (name,):
                click.echo(visible(each))
        else:
            show(result)
    return max(codes)


def show_list(
    kind: str, shape: str, rows: Sequence[Any], columns: Sequence[str], wide: Sequence[str] = (), empty_text: str = ""
) -> None:
    """Show results as rows. columns: the fields to show, of which the first is the name; wide: more fields for -o wide;
    empty_text: shown if there are no rows.
    """
    fields = (*columns, *wide) if shape == "wide" else columns
    if shape in ("json", "yaml", "name"):
        show_results(kind, shape, ((getattr(row, columns[0]), row) for row in rows), lambda _: None)
    elif rows or not empty_text:
        values = ([getattr(row, field) for field in fields] for row in rows)
        table(fields, ([", ".join(map(str, v)) if isinstance(v, tuple) else v or "" for v in row] for row in values))
    else:
        say(empty_text)


def print_json(document: object, indent: int | None = None) -> None:
    """Print a document without an envelope on stdout, such as a schema or a line of --jsonl."""
    click.echo(escape_for_stream(visible_json(plain(document), indent=indent), sys.stdout))


class _Json:
    @staticmethod
    def item(schema: str, result: Any, *, first: bool) -> str:
        text = escape_for_stream(visible_json(result, indent=2), sys.stdout).replace("\n", "\n    ")
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
        """Return YAML. Characters outside ASCII are escaped if one is not printable, or stdout cannot encode them."""
        how: dict[str, Any] = {"sort_keys": False, "width": _NO_FOLDING}
        try:
            text: str = yaml.dump(
                value, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), allow_unicode=True, **how
            )
        except UnicodeEncodeError:  # a lone surrogate, which only the slow dumper writes
            text = yaml.dump(value, Dumper=yaml.SafeDumper, **how)
        if supports_unicode(sys.stdout) and text.replace("\n", "").isprintable():
            return text
        return str(yaml.dump(value, Dumper=yaml.SafeDumper, **how))


_NO_FOLDING = (1 << 31) - 1  # columns
_FORMS: Mapping[Form, type[_Json | _Yaml]] = {"json": _Json, "yaml": _Yaml}
