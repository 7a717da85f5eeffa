"""Arguments, options and help of `winhost explain`."""

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand, implemented_in
from winhost.cli.outputs import answers


@click.command(cls=WinhostCommand)
@click.argument("code", required=False, **completion.CODES)
@click.option("--list", "listed", is_flag=True, help="List all codes, or those that start with CODE.")
@answers()
@implemented_in("winhost.cli.explain")
def explain() -> None:
    """Explain a reason by its CODE.

    Shows what the reason says, what it means, its remedy, its evidence with sources, and related reasons. CODE may also
    be a line from a log that contains a known failure. The codes for a fact that could not be read are listed once, as
    *.unknown, and can be explained for each path and capability, for example nvlink.unknown.
    """
