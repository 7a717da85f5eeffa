"""winhost facts: facts files from what people have at hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winhost.cli.groups import WinhostGroup
from winhost.cli.options import force_option
from winhost.cli.outputs import Output, answers

if TYPE_CHECKING:
    from winhost.imports.observation import FileObservations
    from winhost.model.facts import Facts

# Said twice, here and in winhost.imports.sources, so that --help need not load the readers.
KINDS = ("nvidia-smi", "dxdiag", "computer-info", "systeminfo", "lspci", "survey-dda")


def _host(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    from winhost.model.errors import visible
    from winhost.model.fleetfile import host_name

    try:
        return None if value is None else host_name(value)
    except ValueError as wrong:
        raise click.BadParameter(f"'{visible(str(value))}' {wrong}") from None


@click.group(cls=WinhostGroup)
def facts() -> None:
    """Make facts of a machine from what its own tools print."""


@facts.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--host", callback=_host, help="What to call the machine. Default: its own name, where a file tells it.")
@click.option("--kind", type=click.Choice(KINDS), help="What the FILES are. Default: recognised by what is in each.")
@force_option
@answers("FILE", "Write the facts to FILE.", wide=True)
def import_(files: tuple[Path, ...], host: str | None, kind: str | None, force: bool, output: Output) -> int:
    """Make facts of one machine from FILES.

    Each is the output of nvidia-smi -q -x (on Windows or Linux; also its plain table), Get-ComputerInfo |
    ConvertTo-Json, systeminfo in English (also /fo csv), SurveyDDA.ps1, lspci -vv -nn (a live Linux on the same
    machine) or dxdiag /x. What none of them tells is unknown. Where two differ, the more exact counts; what two tell
    equally exactly and differently is unknown. Files that cannot be read are left out with a warning; files of two
    machines are refused.
    """
    from winhost.cli.answers import Detected
    from winhost.cli.envelope import show_results
    from winhost.cli.output import say, write_file
    from winhost.cli.show_facts import show_facts
    from winhost.model.documents import write_document

    made = _imported(files, host, kind)
    if output.place is not None:
        write_file(output.place, write_document(made), "facts", force)

    def show(_: Detected) -> None:
        show_facts(made, wide=output.wide)
        if output.place is None:
            say("  Not written: name a file with -o.")
        else:
            say(f"  Written to {output.place}. Next: winhost assess {output.place}")

    show_results("detection", output.shape, [(made.host, Detected(made.host, made))], show)
    return 0


def _imported(files: tuple[Path, ...], host: str | None, kind: str | None) -> "Facts":
    from datetime import UTC, datetime

    from winhost.imports.merge import merged

    told = list(_readable(files, kind))
    return merged(told, host, datetime.now(UTC).isoformat(timespec="seconds"), warn=_warn)


def _readable(files: tuple[Path, ...], kind: str | None) -> "Iterator[tuple[str, str, FileObservations]]":
    """Those that can be read, each with its kind; the others with a warning. Raises NotReadable where there is none."""
    from winhost.imports.import_errors import NotReadable
    from winhost.imports.sources import read

    faults, readable = [], 0
    for path in files:
        try:
            found, told = read(str(path), _bytes(path), kind)
        except NotReadable as fault:
            faults.append(fault)
            continue
        readable += 1
        if told.advice:
            _warn(f"{path}: {told.advice}")
        yield str(path), found, told
    if not readable:
        raise faults[0]
    for left_out in faults:
        _warn(f"left out: {left_out.what}" + (f". {left_out.hint}" if left_out.hint else ""))


def _warn(text: str) -> None:
    from winhost.cli.output import say

    say(f"warning: {text}", err=True)


def _bytes(path: Path) -> bytes:
    from winhost.imports.import_errors import NotReadable
    from winhost.imports.text import LARGEST
    from winhost.model.files import TooLarge, read_within

    try:
        return read_within(path, LARGEST)
    except TooLarge as large:
        why = str(large)
    except OSError as error:
        why = f"cannot be read ({error.strerror or error})"
    raise NotReadable(str(path), why)
