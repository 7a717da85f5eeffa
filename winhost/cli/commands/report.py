"""Arguments, options and help of `winhost report`."""

from pathlib import Path
from typing import Any

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand
from winhost.cli.options import (
    assume_option,
    at_once_option,
    fleet_option,
    force_option,
    need_option,
    what_if_option,
)
from winhost.cli.outputs import answers


@click.command(cls=WinhostCommand)
@click.argument("words", nargs=-1, required=True, metavar="FACTS|HOST...", **completion.HOSTS_AND_FILES)
@force_option
@need_option
@what_if_option
@click.option("--brief", is_flag=True, help="Only what decides: one printed page per host.")
@click.option("--workload", "workload_file", type=click.Path(path_type=Path), help="The workload to be served.")
@assume_option
@fleet_option
@at_once_option
@answers("FILE", "The file to write, or a folder for one page per host.", required=True)
def report(**options: Any) -> int:
    """Write the verdicts on hosts to one HTML file, to read and share.

    FACTS are facts files or folders of them; HOSTs are names from fleet.yaml, patterns or groups. Changes nothing. The
    file is self-contained: no scripts, no network. A folder (one that exists, or whose name ends with /) gets one page
    per host and an index.html.
    """
    from winhost.cli.report import report as run

    return run(**options)
