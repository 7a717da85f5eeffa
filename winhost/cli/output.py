"""Print paragraphs, findings and errors for people, and write files that -o names, which may replace only files of
their own kind.
"""

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import click

from winhost.cli.shells import command_line
from winhost.cli.terminal import wrapped
from winhost.model.errors import ErrorDocument, ErrorResult, UsageError, WinhostError, visible
from winhost.model.files import TooLarge, read_within, write_whole
from winhost.model.units import Bytes, MiB

if TYPE_CHECKING:  # what shows a finding has loaded it
    from winhost.findings.show import FindingView

Kind: TypeAlias = Literal[
    "facts", "plan", "report", "lab's fleet", "workload", "rendered", "mended file", "install-plan"
]

_WORDS = {"facts": "a facts file", "plan": "a plan", "report": "a report", "lab's fleet": "the fleet file of a lab"}
_WORDS |= {"mended file": "a mended file", "install-plan": "a plan of winhost install"}
_WORDS |= {"fleet": "a fleet file", "playbook": "a playbook", "workload": "a workload", "host": "a host file"}
_WORDS |= {"rendered": "a file of winhost render"}
_FOREIGN = "a file that winhost did not write"
_MOST: Bytes = 16 * MiB  # of a file of ours; a larger one is another's
_HEAD = 4096
_REPORT = b'<meta name="generator" content="winhost '
_LAB = b"# Simulated hosts: "
_RENDERED = (b"# Written by winhost ", b'{\n  "description": "Written by winhost ')
_SCHEMA = re.compile(rb"^schema: *[\"']?winhost\.([a-z-]+)/", re.MULTILINE)
_OF_HOSTS = re.compile(
    r"\bwinhost (?:detect|assess|plan|apply|resume|rollback|verify|up|down|open|chat|status|boot|probe|yield"
    r"|serve (?:keys |(?!keys\b))\w+|host \w+|models show)(?![\w-]| -{2}help)"
)

_NAMING = ("NotAvailable", "NotFound", "RemoteError")  # errors whose words may name a resource as programs do


def say(text: str, *, hang: int = 0, err: bool = False, **style: Any) -> None:
    """Print a paragraph, styled as `click.secho` does. Text from hosts and files is data: control characters are shown.

    It is broken into lines as `terminal.wrapped` does.
    """
    lines = wrapped(visible(text), hang, sys.stderr if err else sys.stdout)
    click.echo(click.style(lines, **style) if style else lines, err=err)


def show_finding(finding: "FindingView", lead: str = "", **style: Any) -> None:
    """Show a finding. lead: the beginning of its first line, such as ` 1. `; style: of that line, as `say` takes it."""
    blanks = len(lead) - len(lead.lstrip(" "))
    indent = max(len(lead), blanks + 2)
    say(f"{lead}{finding.head}", hang=indent - blanks, **style)
    for line in finding.body:
        say(f"{' ' * indent}{line}", hang=2)


def show_command(lead: str, *words: str, err: bool = False) -> None:
    """Show a command below a sentence that leads to it, in a line of its own that no terminal breaks."""
    say(lead, err=err)
    click.echo(f"  {with_fleet(visible(command_line(words)))}", err=err)


def show_next(words: Iterable[str], fleet_file: Path | None = None) -> None:
    """Show the next command. words: what follows `winhost`."""
    show_command("Next:", "winhost", *words, *(("--fleet", str(fleet_file)) if fleet_file else ()))


def show_error_text(error: WinhostError, host: str = "", fleet: str | None = None) -> None:
    """Print an error on stderr. host: its host, if there are several; fleet: see `with_fleet`."""
    for line in with_fleet(error_text(error, host), fleet).split("\n"):
        say(line, hang=2 if line.startswith("  ") else 0, err=True)


def with_fleet(text: str, fleet: str | None = None) -> str:
    """Add the fleet file that was typed to each command in a text, because the command names hosts and runs of it. A
    line that names a fleet file stays, and so does the first one above it, which says what happened ("… that winhost up
    needs"). fleet: that file, if no running command knows it any more.
    """
    if (running := click.get_current_context(silent=True)) is not None:
        fleet = str(file) if (file := running.params.get("fleet_file")) else fleet
    if fleet is None:
        return text
    words = visible(command_line(("--fleet", fleet)))
    lines = text.split("\n")
    first = 1 if "--fleet" in text else 0
    for number, line in enumerate(lines[first:], start=first):
        if "--fleet" not in line:
            lines[number] = _OF_HOSTS.sub(lambda found: f"{found[0]} {words}", line)
    return "\n".join(lines)


def error_text(error: WinhostError, host: str = "") -> str:
    """Write `error: …`, what it means and what to do. The host comes first, unless the text begins with it."""
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
    from winhost.engine.failures import describe_error  # loads every resource, which other errors do not name

    return describe_error(error)


def failed(error: WinhostError, host: str | None = None) -> ErrorResult:
    """Make the document of an error, in the words for people. host: None for the host that the error names."""
    document = ErrorDocument(error.code, int(error.exit_code), what_happened(error), error.meaning, error.hint)
    return ErrorResult(host or error.host, document)


def write_file(path: Path, text: str | Iterable[str], kind: Kind, force: bool) -> None:
    """Write a file that the user named. Raises UsageError (OtherKind), and OSError as `write_whole` does."""
    refuse_other_kind(path, kind, force)
    write_whole(path, [text] if isinstance(text, str) else text)


def one_file(path: Path) -> UsageError:
    """Make the error for several hosts and one file."""
    return UsageError(
        "OneFile",
        what=f"several hosts are named, and {visible(str(path))} is one file",
        hint="Name a folder, which gets a file for each host, with a / at its end",
    )


def refuse_other_kind(path: Path, kind: Kind, force: bool = False) -> None:
    """Raises UsageError (OtherKind) for a file that holds something else; an empty one may be written over."""
    if force or not path.is_file():
        return
    found = _kind_of(path)
    if found not in (None, kind):
        # Nothing in a mended file tells that winhost wrote it.
        what = (
            "is there already" if kind == "mended file" else f"is {_WORDS.get(found or '', found)}, not {_WORDS[kind]}"
        )
        raise UsageError(
            "OtherKind",
            what=f"{visible(str(path))} {what}",
            meaning="Nothing was written.",
            hint="Name another file with -o, or write over this one with --force.",
        )


def _kind_of(path: Path) -> str | None:
    """Return `facts` for a document with the schema `winhost.facts/3`, in JSON or YAML; None for an empty file."""
    try:
        data = read_within(path, _MOST)
    except (TooLarge, OSError):
        return _FOREIGN
    if not data:
        return None
    head = data[:_HEAD]
    if _REPORT in head:
        return "report"
    if head.startswith(_LAB):
        return "lab's fleet"
    if head.startswith(_RENDERED):
        return "rendered"
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        found = _SCHEMA.search(data)
    else:
        schema = document.get("schema") if isinstance(document, dict) else None
        found = re.match(rb"winhost\.([a-z-]+)/", schema.encode()) if isinstance(schema, str) else None
    return found[1].decode() if found else _FOREIGN
