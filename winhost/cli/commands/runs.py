"""Arguments, options and help of `winhost runs`."""

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand, implemented_in
from winhost.cli.outputs import answers


@click.command(cls=WinhostCommand)
@click.argument("run_name", metavar="[RUN]", required=False, **completion.RUNS)
@answers(wide=True)
@implemented_in("winhost.cli.runs")
def runs() -> None:
    """List runs, or show one.

    Reads the journals in your own state folder; no host is contacted.
    """
