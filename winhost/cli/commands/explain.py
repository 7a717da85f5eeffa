"""Arguments, options and help of `winhost explain`."""

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand, implemented_in
from winhost.cli.outputs import answers


@click.command(cls=WinhostCommand)
@click.argument("code", required=False, **completion.CODES)
@click.option("--list", "listed", is_flag=True, help="List all codes, or those that begin with CODE.")
@answers()
@implemented_in("winhost.cli.explain")
def explain() -> None:
    """Tell the whole story of a reason's CODE.

    What it is, what it means, the remedy, the evidence with its sources, and reasons about the same thing. In the place
    of CODE a line of a log will do, where it has the words of a failure. What may lack of every path and capability is
    listed once, as *.unknown, and explained of any: nvlink.unknown.
    """
