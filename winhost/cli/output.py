"""Print paragraphs, findings and errors for people, and write the files that -o names, which may only replace files of
the same kind.
"""

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import click

from winhost.cli.shells import command_line
from winhost.cli.terminal import wrap
from winhost.model.errors import ErrorDocument, ErrorResult, UsageError, WinhostError, visible
from winhost.model.files import TooLarge, read_within, write_whole
from winhost.model.units import Bytes, MiB

if TYPE_CHECKING:
    from winhost.findings.show import FindingView

Kind: TypeAlias = Literal[
    "facts", "plan", "report", "lab's fleet", "workload", "rendered", "mended file", "install-plan"
]

_KIND_NAMES = {
    "facts": "a facts file",
    "plan": "a plan",
    "report": "a report",
    "lab's fleet": "the fleet file of a lab",
}
_KIND_NAMES |= {"mended file": "a mended file", "install-plan": "a plan of winhost install"}
_KIND_NAMES |= {"fleet": "a fleet file", "playbook": "a playbook", "workload": "a workload", "host": "a host file"}
_KIND_NAMES |= {"rendered": "a file of winhost render"}
_FOREIGN_FILE = "a file that winhost did not write"
_MAX_BYTES: Bytes = 16 * MiB  # of a file that winhost wrote
_HEAD_BYTES = 4096
_REPORT = b'<meta name="generator" content="winhost '
_LAB = b"# Simulated hosts: "
_RENDERED = (b"# Written by winhost ", b'{\n  "description": "Written by winhost ')
_SCHEMA = re.compile(rb"^schema: *[\"']?winhost\.([a-z-]+)/", re.MULTILINE)
_HOST_COMMANDS = re.compile(
    r"\bwinhost (?:detect|assess|plan|apply|resume|rollback|verify|up|down|open|chat|status|boot|probe|yield"
    r"|serve (?:keys |(?!keys\b))\w+|host \w+|models show)(?![\w-]| -{2}help)"
)

_CODES_WITH_RESOURCES = ("NotAvailable", "NotFound", "RemoteError")  # errors whose text may name a resource by its type


def say(text: str, *, hang: int = 0, err: bool = False, **style: Any) -> None:
    """Print a paragraph, styled as `click.secho` does, and broken into lines as `terminal.wrap` does. Control
    characters in the text are shown, because text from hosts and files is data.
    """
    lines = wrap(visible(text), hang, sys.stderr if err else sys.stdout)
    click.echo(click.style(lines, **style) if style else lines, err=err)


def show_finding(finding: "FindingView", lead: str = "", **style: Any) -> None:
    """Show a finding. lead: the beginning of its first line, such as ` 1. `; style: of that line, as `say` takes it."""
    leading_blanks = len(lead) - len(lead.lstrip(" "))
    indent = max(len(lead), leading_blanks + 2)
    say(f"{lead}{finding.head}", hang=indent - leading_blanks, **style)
    for line in finding.body:
        say(f"{' ' * indent}{line}", hang=2)


def show_command(lead: str, *arguments: str, err: bool = False) -> None:
    """Show a sentence, and below it a command on a line of its own, so that it can be copied."""
    say(lead, err=err)
    click.echo(f"  {with_fleet(visible(command_line(arguments)))}", err=err)


def show_next(arguments: Iterable[str], fleet_file: Path | None = None) -> None:
    """Show the next command. arguments: what follows `winhost`."""
    show_command("Next:", "winhost", *arguments, *(("--fleet", str(fleet_file)) if fleet_file else ()))


def show_error_text(error: WinhostError, host: str = "", fleet: str | None = None) -> None:
    """Print an error on stderr. host: its host, if the command has several; fleet: as in `with_fleet`."""
    for line in with_fleet(error_text(error, host), fleet).split("\n"):
        say(line, hang=2 if line.startswith("  ") else 0, err=True)


def with_fleet(text: str, fleet: str | None = None) -> str:
    """Add `--fleet` with the fleet file of the running command to each command in a text. Lines that already have
    `--fleet` stay as they are, and if there is one, so does the first line, which says what happened.

    fleet: the fleet file to use if no command runs any more.
    """
    if (context := click.get_current_context(silent=True)) is not None:
        fleet = str(file) if (file := context.params.get("fleet_file")) else fleet
    if fleet is None:
        return text
    arguments = visible(command_line(("--fleet", fleet)))
    lines = text.split("\n")
    first_line = 1 if "--fleet" in text else 0
    for number, line in enumerate(lines[first_line:], start=first_line):
        if "--fleet" not in line:
            lines[number] = _HOST_COMMANDS.sub(lambda match: f"{match[0]} {arguments}", line)
    return "\n".join(lines)


def error_text(error: WinhostError, host: str = "") -> str:
    """Return `error: …`, the meaning and the hint. The host comes first, unless the text begins with it."""
    following = (text for text in (error.meaning, error.hint) if text)
    details = "\n".join(f"  {visible(line)}" for text in following for line in text.split("\n"))
    what = describe_error(error)
    names_host = not host or re.match(rf"{re.escape(host)}(?![\w-])", what)
    what = what if names_host else f"{host}: {what}"
    return f"error: {visible(what)}" + (f"\n{details}" if details else "")


def describe_error(error: WinhostError) -> str:
    """Return the sentence that says what happened, with resources called by their titles."""
    if error.code not in _CODES_WITH_RESOURCES:
        return error.what
    from winhost.engine.failures import describe_error  # loads every resource, which other errors do not name

    return describe_error(error)


def error_result(error: WinhostError, host: str | None = None) -> ErrorResult:
    """Return the document of an error. host: None for the host that the error names."""
    document = ErrorDocument(error.code, int(error.exit_code), describe_error(error), error.meaning, error.hint)
    return ErrorResult(host or error.host, document)


def write_file(path: Path, text: str | Iterable[str], kind: Kind, force: bool) -> None:
    """Write a file that the user named. Raises UsageError (OtherKind), and OSError as `write_whole` does."""
    refuse_other_kind(path, kind, force)
    write_whole(path, [text] if isinstance(text, str) else text)


def file_for_several_hosts(path: Path) -> UsageError:
    """Return the error for a command with several hosts whose -o names a file."""
    return UsageError(
        "OneFile",
        what=f"several hosts are named, and {visible(str(path))} is one file",
        hint="Name a folder, which gets a file for each host, with a / at its end",
    )


def refuse_other_kind(path: Path, kind: Kind, force: bool = False) -> None:
    """Raise UsageError (OtherKind) for a file of another kind. An empty file may be overwritten."""
    if force or not path.is_file():
        return
    kind_found = _kind_of(path)
    if kind_found not in (None, kind):
        # A mended file has no mark of winhost, so its kind cannot be compared.
        what = (
            "is there already"
            if kind == "mended file"
            else f"is {_KIND_NAMES.get(kind_found or '', kind_found)}, not {_KIND_NAMES[kind]}"
        )
        raise UsageError(
            "OtherKind",
            what=f"{visible(str(path))} {what}",
            meaning="Nothing was written.",
            hint="Name another file with -o, or write over this one with --force.",
        )


def _kind_of(path: Path) -> str | None:
    """Return the kind of a file, such as `facts` for the schema `winhost.facts/3` in JSON or YAML; None if it is
    empty.
    """
    try:
        data = read_within(path, _MAX_BYTES)
    except (TooLarge, OSError):
        return _FOREIGN_FILE
    if not data:
        return None
    head = data[:_HEAD_BYTES]
    if _REPORT in head:
        return "report"
    if head.startswith(_LAB):
        return "lab's fleet"
    if head.startswith(_RENDERED):
        return "rendered"
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        match = _SCHEMA.search(data)
    else:
        schema = document.get("schema") if isinstance(document, dict) else None
        match = re.match(rb"winhost\.([a-z-]+)/", schema.encode()) if isinstance(schema, str) else None
    return match[1].decode() if match else _FOREIGN_FILE
