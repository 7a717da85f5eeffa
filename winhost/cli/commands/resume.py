"""Arguments, options and help of `winhost resume`."""

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand, implemented_in
from winhost.cli.options import run_options


@click.command(cls=WinhostCommand)
@click.argument("run_name", metavar="RUN", **completion.RUNS)
@click.option(
    "--vm", metavar="NAME", help="Give the cards to this VM instead. Only while nothing was done for the other."
)
@click.option("--card", "cards", multiple=True, metavar="NAME", help="Another card, likewise; may be repeated.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Another setting of the path, likewise.")
@run_options
@implemented_in("winhost.cli.resume")
def resume() -> None:
    """Go on with a RUN that was interrupted.

    Waits out what may still be running on the host, reads what is so, and does what is left. What a later stage found
    wrong of the request can be chosen anew: the rest is planned anew and shown, and every consent is asked for again.
    """
