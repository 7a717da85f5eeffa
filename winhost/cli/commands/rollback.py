"""Arguments, options and help of `winhost rollback`."""

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand, implemented_in
from winhost.cli.options import run_options


@click.command(cls=WinhostCommand)
@click.argument("run_name", metavar="RUN", **completion.RUNS)
@run_options
@implemented_in("winhost.cli.rollback")
def rollback() -> None:
    """Undo exactly what a RUN changed.

    In reverse, also after a crash and also where part of it was undone by hand. What others use now is kept and said.
    """
