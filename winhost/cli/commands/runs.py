"""Arguments, options and help of `winhost runs`."""

from typing import Any

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand
from winhost.cli.outputs import answers


@click.command(cls=WinhostCommand)
@click.argument("run_name", metavar="[RUN]", required=False, **completion.RUNS)
@answers(wide=True)
def runs(**options: Any) -> int:
    """List runs, or show one.

    Reads the journals in your own state folder; no host is contacted.
    """
    from winhost.cli.runs import runs as run

    return run(**options)
