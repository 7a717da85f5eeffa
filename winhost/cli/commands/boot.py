"""Arguments, options and help of `winhost boot`."""

from typing import Any

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand
from winhost.cli.options import Duration, accept_option, fleet_option
from winhost.cli.outputs import answers

SYSTEMS = ("linux", "windows", "installer")


@click.command(cls=WinhostCommand)
@click.argument("host", metavar="HOST", **completion.HOSTS)
@click.argument("system", type=click.Choice(SYSTEMS))
@click.option("--other", metavar="HOST", help="The machine's other system in fleet.yaml: wait until it answers.")
@click.option(
    "--console/--without-console",
    default=None,
    help="Whether somebody can reach the machine's console (in person, or by its management controller) if it hangs.",
)
@click.option(
    "--return-after",
    type=click.IntRange(0, 1440),
    metavar="MINUTES",
    help="On its Linux: a timer that starts Windows if winhost does not come within MINUTES of a start; 0 for none.",
)
@click.option(
    "--restart-deadline", type=Duration(), default="30m", help="How long to wait for --other.", show_default=True
)
@accept_option
@fleet_option
@answers()
def boot(**options: Any) -> int:
    """Start the other system of a machine with two, once.

    HOST is the one that runs now. The firmware is told to start SYSTEM once (BootNext), that is read back, and the
    machine restarts: with --accept restart, and --console or --without-console. The order of the firmware stays as it
    is, so that the start after that is by the order again.
    """
    from winhost.cli.boot import boot as run

    return run(**options)
