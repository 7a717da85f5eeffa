"""winhost facts: make facts files from the output of a machine's own tools."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click

from winhost.cli.envelope import show_results
from winhost.cli.look.detect import Detected, show_facts
from winhost.cli.named_files import STDIN, read_input
from winhost.cli.options import Output
from winhost.cli.output import refuse_other_kind, say, show_next, write_file
from winhost.imports.again import join_imports, refuse_others
from winhost.imports.merge import merge_files
from winhost.imports.observation import MAX_FILE_SIZE, READABLE, FileObservations, unreadable_file_error
from winhost.imports.sources import read
from winhost.model.documents import write_document
from winhost.model.errors import UsageError, visible
from winhost.model.facts import Facts
from winhost.model.files import TooLarge
from winhost.model.fleet import host_name
from winhost.resources.factsfile import read_facts

_MAX_NAMES = 6  # facts that a warning lists by name


def import_(files: tuple[Path, ...], host: str | None, kind: str | None, force: bool, output: Output) -> int:
    try:
        name = None if host is None else host_name(host)
    except ValueError as error:
        raise click.BadParameter(f"'{visible(str(host))}' {error}", param_hint="'--host'") from None
    older = None
    if output.path is not None and not force:
        refuse_other_kind(output.path, "facts")
        older = read_facts(output.path) if output.path.is_file() and output.path.stat().st_size else None
    observations = [*_read_files(files, kind)]
    if older and not any(each.host for _, _, each in observations):
        name = name or older.host
    facts = merge_files(observations, name, datetime.now(UTC).isoformat(timespec="seconds"), warn=_warn)
    if older:
        facts = _join_older(str(output.path), older, facts)
    if output.path is not None:
        write_file(output.path, write_document(facts), "facts", force)

    def show(_: Detected) -> None:
        show_facts(facts, wide=output.wide)
        if output.path is None:
            say("  Not saved: name a file with -o.")
        else:
            say(f"  Written to {output.path}")
            show_next(("assess", str(output.path)))

    show_results("detection", output.shape, [(facts.host, Detected(facts.host, facts))], show)
    return 0


def _join_older(file: str, older: Facts, newer: Facts) -> Facts:
    """Join older and newer facts, and warn about the facts that are kept or replaced."""
    refuse_others(file, older, newer)
    result = join_imports(older, newer)
    for sentence in result.replaced:
        _warn(f"{visible(file)}: replaced {sentence}")
    if result.kept:
        names = ", ".join(result.kept[:_MAX_NAMES]) + (
            f" and {len(result.kept) - _MAX_NAMES} more" * (len(result.kept) > _MAX_NAMES)
        )
        _warn(
            f"{visible(file)}: kept from the import of {older.read_at}: {names}. --force replaces the file as a whole"
        )
    return result.facts


def _read_files(files: tuple[Path, ...], kind: str | None) -> Iterator[tuple[str, str, FileObservations]]:
    """Read the files and warn about unreadable ones. Yield the file, its kind and its observations. Raises UsageError
    (NotReadable) if all files are unreadable.
    """
    faults = []
    for path in files:
        try:
            name = "standard input" if str(path) == STDIN else str(path)
            file_observations = read(name, _read_bytes(path), kind)
        except UsageError as fault:
            faults.append(fault)
            continue
        for kind_found, observations in file_observations:
            if observations.advice:
                _warn(f"{name}: {observations.advice}")
            yield name, kind_found, observations
    if len(faults) == len(files):
        raise faults[0]
    for skipped in faults:
        # A list of all kinds is too long for a warning.
        hint = READABLE if "\n" in (skipped.hint or "") else skipped.hint
        _warn(f"left out: {skipped.what}" + (f". {hint}" if hint else ""))


def _warn(text: str) -> None:
    say(f"warning: {text}", err=True)


def _read_bytes(path: Path) -> bytes:
    try:
        return read_input(path, MAX_FILE_SIZE)
    except TooLarge as error:
        why, advice = str(error), ""
    except OSError as error:
        why, advice = f"cannot be read ({error.strerror or error})", "Check the path and its permissions. "
    raise unreadable_file_error(str(path), why, f"{advice}{READABLE}")
