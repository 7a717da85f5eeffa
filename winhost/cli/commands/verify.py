"""Arguments, options and help of `winhost verify`."""

from typing import Any

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand
from winhost.cli.options import at_once_option, facts_option, fleet_option
from winhost.cli.outputs import answers


@click.command(cls=WinhostCommand)
@click.argument("words", nargs=-1, required=True, metavar="PLAN... [FACTS...]", **completion.HOSTS_AND_FILES)
@facts_option
@click.option("--details", is_flag=True, help="Show everything that was compared, not only what differs.")
@fleet_option
@at_once_option
@answers(wide=True)
def verify(**options: Any) -> int:
    """Check that hosts are still as PLANS left them.

    PLANS are files, or folders that plan or bundle wrote. Reads the host of each plan, or its FACTS, and compares
    property by property. Changes nothing.
    """
    from winhost.cli.verify import verify as run

    return run(**options)
