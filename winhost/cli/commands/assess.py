"""Arguments, options and help of `winhost assess`."""

from pathlib import Path

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand, implemented_in
from winhost.cli.options import (
    assume_option,
    at_once_option,
    facts_option,
    fleet_option,
    need_option,
    what_if_option,
    words_argument,
)
from winhost.cli.outputs import answers


@click.command(cls=WinhostCommand)
@words_argument
@facts_option
@click.option("--path", help="Judge by this path alone.", **completion.PATHS)
@need_option
@click.option("--workload", "workload_file", type=click.Path(path_type=Path), help="What shall be served.")
@what_if_option
@assume_option
@click.option("--explain", "everything", is_flag=True, help="Show notes, and every reason of every way.")
@click.option("-v", "--details", is_flag=True, help="Of several hosts show each, and not just a row.")
@click.option("--full", "in_full", is_flag=True, help="With --json or -o yaml: everything, also what decides nothing.")
@fleet_option
@at_once_option
@answers(wide=True)
@implemented_in("winhost.cli.assess")
def assess() -> None:
    """Say which ways work on a host, which do not, and why.

    Needs HOSTs of fleet.yaml or FACTS (files, or folders that detect wrote). Changes nothing. Several hosts get a row
    each; --details shows them whole.
    """
