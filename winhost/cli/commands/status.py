"""Arguments, options and help of `winhost status`."""

from typing import Any

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand
from winhost.cli.options import at_once_option, fleet_option
from winhost.cli.outputs import answers


@click.command(cls=WinhostCommand)
@click.argument("hosts", metavar="[HOST]...", nargs=-1, **completion.HOSTS)
@click.option("--watch", is_flag=True, help="Ask again and again, until Ctrl-C: in a terminal the screen is redrawn.")
@click.option(
    "--every",
    type=click.IntRange(1, 3600),
    show_default="10",
    help="With --watch: seconds from one look to the next.",
)
@click.option(
    "--test",
    is_flag=True,
    help="With --watch: test what serves, as winhost serve test does, once after each restart of its machine and each "
    "change of a version since its endpoint was last found to answer.",
)
@click.option(
    "--api-key",
    "key",
    metavar="REF",
    help="With --test: an API key, such as env:API_KEY. Default: one that winhost made.",
)
@at_once_option
@fleet_option
@answers()
def status(**options: Any) -> int:
    """Show what is served where, how it is, and what is unfinished.

    Asks the hosts that serve by the journals of this computer, or HOSTS; one that cannot be reached is shown with the
    reason. Each host has its next command. Changes nothing. With --watch, and where stdout is no terminal, a host has a
    line with the time whenever something of it has changed.
    """
    from winhost.cli.status import status as run

    return run(**options)
