"""Arguments, options and help of `winhost rollback`."""

from typing import Any

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand
from winhost.cli.options import run_options


@click.command(cls=WinhostCommand)
@click.argument("run_name", metavar="RUN", **completion.RUNS)
@run_options
def rollback(**options: Any) -> int:
    """Undo exactly what a RUN changed.

    Works in reverse order, also after a crash and if part of the run was undone by hand. Whatever others use by now is
    kept and reported.
    """
    from winhost.cli.rollback import rollback as run

    return run(**options)
