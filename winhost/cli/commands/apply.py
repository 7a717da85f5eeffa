"""Arguments, options and help of `winhost apply`."""

from pathlib import Path
from typing import Any

import click

from winhost.cli.groups import WinhostCommand
from winhost.cli.options import Age, at_once_option, run_options


@click.command(cls=WinhostCommand)
@click.argument("plans", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PLAN...")
@run_options
@at_once_option
@click.option("--stop-on-failure", is_flag=True, help="Start no further host once one has failed.")
@click.option("--check", "only_check", is_flag=True, help="Read the hosts and show what would be done; change nothing.")
@click.option("--max-age", type=Age(), help="Refuse plans older than this, for example 12h or 7d.")
def apply(**options: Any) -> int:
    """Apply PLANS. Each change is journalled and can be rolled back.

    Refuses a plan if its host has changed since the plan was made. A run survives restarts and being killed: see
    `winhost runs`, then use `resume` or `rollback`. Ctrl-C, SIGTERM, closing the terminal or closing the pipe stops the
    run after the current step.

    On a terminal, apply shows the plans first and asks for each approval.
    """
    from winhost.cli.apply import apply as run

    return run(**options)
