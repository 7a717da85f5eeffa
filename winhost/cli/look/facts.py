"""winhost facts: facts files from the output of a machine's own tools."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click

from winhost.cli.envelope import show_results
from winhost.cli.look.detect import Detected, show_facts
from winhost.cli.named_files import STDIN, read_input
from winhost.cli.options import Output
from winhost.cli.output import refuse_other_kind, say, show_next, write_file
from winhost.imports.again import joined, refuse_others
from winhost.imports.merge import merged
from winhost.imports.observation import LARGEST, READABLE, FileObservations, unreadable
from winhost.imports.sources import read
from winhost.model.documents import write_document
from winhost.model.errors import UsageError, visible
from winhost.model.facts import Facts
from winhost.model.files import TooLarge
from winhost.model.fleet import host_name
from winhost.resources.factsfile import read_facts

_NAMED = 6  # facts that are listed by name


def import_(files: tuple[Path, ...], host: str | None, kind: str | None, force: bool, output: Output) -> int:
    try:
        name = None if host is None else host_name(host)
    except ValueError as wrong:
        raise click.BadParameter(f"'{visible(str(host))}' {wrong}", param_hint="'--host'") from None
    older = None
    if output.path is not None and not force:
        refuse_other_kind(output.path, "facts")
        older = read_facts(output.path) if output.path.is_file() and output.path.stat().st_size else None
    told = [*_readable(files, kind)]
    if older and not any(each.host for _, _, each in told):
        name = name or older.host
    made = merged(told, name, datetime.now(UTC).isoformat(timespec="seconds"), warn=_warn)
    if older:
        made = _joined(str(output.path), older, made)
    if output.path is not None:
        write_file(output.path, write_document(made), "facts", force)

    def show(_: Detected) -> None:
        show_facts(made, wide=output.wide)
        if output.path is None:
            say("  Not saved: name a file with -o.")
        else:
            say(f"  Written to {output.path}")
            show_next(("assess", str(output.path)))

    show_results("detection", output.shape, [(made.host, Detected(made.host, made))], show)
    return 0


def _joined(file: str, older: Facts, newer: Facts) -> Facts:
    """Join both, and say what stays of the older one and what is replaced."""
    refuse_others(file, older, newer)
    result = joined(older, newer)
    for sentence in result.replaced:
        _warn(f"{visible(file)}: replaced {sentence}")
    if result.kept:
        named = ", ".join(result.kept[:_NAMED]) + (
            f" and {len(result.kept) - _NAMED} more" * (len(result.kept) > _NAMED)
        )
        _warn(
            f"{visible(file)}: kept from the import of {older.read_at}: {named}. --force replaces the file as a whole"
        )
    return result.facts


def _readable(files: tuple[Path, ...], kind: str | None) -> Iterator[tuple[str, str, FileObservations]]:
    """Read the files, and warn about unreadable ones. Raises UsageError (NotReadable) if all of them are."""
    faults = []
    for path in files:
        try:
            name = "standard input" if str(path) == STDIN else str(path)
            told = read(name, _bytes(path), kind)
        except UsageError as fault:
            faults.append(fault)
            continue
        for found, observations in told:
            if observations.advice:
                _warn(f"{name}: {observations.advice}")
            yield name, found, observations
    if len(faults) == len(files):
        raise faults[0]
    for left_out in faults:
        # Not a list of all kinds, which is no line of a warning.
        hint = READABLE if "\n" in (left_out.hint or "") else left_out.hint
        _warn(f"left out: {left_out.what}" + (f". {hint}" if hint else ""))


def _warn(text: str) -> None:
    say(f"warning: {text}", err=True)


def _bytes(path: Path) -> bytes:
    try:
        return read_input(path, LARGEST)
    except TooLarge as large:
        why, check = str(large), ""
    except OSError as error:
        why, check = f"cannot be read ({error.strerror or error})", "Check the path and its permissions. "
    raise unreadable(str(path), why, f"{check}{READABLE}")
