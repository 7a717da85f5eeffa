"""Arguments, options and help of `winhost open`."""

from typing import Any

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand
from winhost.cli.options import WholeNumber, fleet_option


@click.command(cls=WinhostCommand)
@click.argument("host", metavar="[HOST]", required=False, **completion.HOSTS)
@click.option(
    "--port", type=WholeNumber(1, 65_535), help="The port on 127.0.0.1. Default: that of the endpoint, or a free one."
)
@fleet_option
def open(**options: Any) -> int:  # noqa: A001 - the command is called so
    """Open a port on this computer that leads to what HOST serves.

    Default: the only host that serves. Runs until Ctrl-C, through SSH, and prints the base URL and a request. Only
    this computer reaches the port. If the endpoint can be reached without a tunnel, it says so and ends.
    """
    from winhost.cli.open import open_ as run

    return run(**options)
