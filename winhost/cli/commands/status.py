"""Arguments, options and help of `winhost status`."""

from typing import Any

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand
from winhost.cli.options import at_once_option, fleet_option
from winhost.cli.outputs import answers


@click.command(cls=WinhostCommand)
@click.argument("hosts", metavar="[HOST]...", nargs=-1, **completion.HOSTS)
@at_once_option
@fleet_option
@answers()
def status(**options: Any) -> int:
    """Show what is served where, how it is, and what is unfinished.

    Asks the hosts that serve by the journals of this computer, or HOSTS; one that cannot be reached is shown with the
    reason. Each host has its next command. Changes nothing.
    """
    from winhost.cli.status import status as run

    return run(**options)
