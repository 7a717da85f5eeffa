"""Arguments, options and help of `winhost apply`."""

from pathlib import Path

import click

from winhost.cli.groups import WinhostCommand, implemented_in
from winhost.cli.options import Age, at_once_option, run_options


@click.command(cls=WinhostCommand)
@click.argument("plans", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PLAN...")
@run_options
@at_once_option
@click.option("--stop-on-failure", is_flag=True, help="Begin no other host once one has failed.")
@click.option("--check", "only_check", is_flag=True, help="Read, compare and print; change nothing. Exit as it would.")
@click.option("--max-age", type=Age(), help="Refuse plans that are older than this, as 12h or 7d.")
@implemented_in("winhost.cli.apply")
def apply() -> None:
    """Do what PLANS say, with a journal and a way back.

    Refuses when a host is no longer as its plan saw it. Survives restarts and being killed: see
    `winhost runs`, then `resume` or `rollback`. Ctrl-C stops after the step in flight, as do SIGTERM, a closed terminal
    and a pipe that nobody reads.

    On a terminal shows the plans first and asks for each consent.
    """
