"""Arguments, options and help of `winhost down`."""

from typing import Any

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand
from winhost.cli.options import run_options


@click.command(cls=WinhostCommand)
@click.argument("word", metavar="[HOST]", required=False, **completion.HOSTS)
@run_options
def down(**options: Any) -> int:
    """Undo what `winhost up` did on a HOST.

    HOST is a host of fleet.yaml, or USER@ADDRESS; without one it is this machine. This is the rollback of the runs that
    up made there, newest first, with a summary of what goes and what stays. It may be interrupted and typed again.
    """
    from winhost.cli.down import down as run

    return run(**options)
