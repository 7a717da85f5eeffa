"""winhost detect: read hosts."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winhost.cli.groups import WinhostCommand
from winhost.cli.options import at_once_option, fleet_option, force_option, hosts_argument
from winhost.cli.outputs import Output, answers
from winhost.model.errors import WinhostError

if TYPE_CHECKING:
    from winhost.cli.reach import Read


@click.command(cls=WinhostCommand)
@hosts_argument
@force_option
@fleet_option
@at_once_option
@answers("FOLDER", "Write FOLDER/<host>.json.", wide=True)
def detect(hosts: tuple[str, ...], force: bool, fleet_file: Path | None, at_once: int, output: Output) -> int:
    """Read what HOSTS are.

    Changes nothing. HOSTS are names of fleet.yaml, patterns ('gpu-*') or groups ('@lab'). Where an account of winhost's
    owns a WSL distro, its task is asked, which logs that account on (docs/safety.md).
    """
    from winhost.cli.answers import Detected
    from winhost.cli.envelope import show_results
    from winhost.cli.reach import read_hosts, watched, worst
    from winhost.cli.show_facts import show_facts

    codes = [0]

    def results() -> "Iterator[tuple[str, Detected | WinhostError]]":
        for read in watched(lambda watch: read_hosts(hosts, fleet_file, at_once, watch)):
            error = read.error or _written(output.place, read, force)
            codes.append(worst([error]))
            yield read.host, error or Detected(read.host, read.known)

    show_results("detection", output.shape, results(), lambda found: show_facts(found.facts, output.place, output.wide))
    return max(codes)


def _written(folder: Path | None, read: "Read", force: bool) -> WinhostError | None:
    """Why a host's facts could not be written: the others' can still be."""
    from winhost.cli.foreign_errors import from_os_error
    from winhost.cli.output import write_file
    from winhost.model.documents import write_document

    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / f"{read.host}.json", write_document(read.facts), "facts", force)
    except WinhostError as error:
        return error
    except OSError as error:
        return from_os_error(error)
    return None
