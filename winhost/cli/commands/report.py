"""Arguments, options and help of `winhost report`."""

from pathlib import Path

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand, implemented_in
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
@click.option("--brief", is_flag=True, help="What decides alone: a page per host when it is printed.")
@click.option("--workload", "workload_file", type=click.Path(path_type=Path), help="What shall be served.")
@assume_option
@fleet_option
@at_once_option
@answers("FILE", "The file to write, or a folder for a page per host.", required=True)
@implemented_in("winhost.cli.report")
def report() -> None:
    """Write verdicts on hosts as one HTML file, to look at and pass on.

    FACTS are facts files or folders of them, HOSTS names of fleet.yaml, patterns or groups. Changes nothing. The file
    needs nothing beside it: no script and no network. A folder (its name ends with /, or it is there) gets a page per
    host, and index.html.
    """
