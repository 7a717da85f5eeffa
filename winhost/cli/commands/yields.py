"""Arguments, options and help of `winhost yield`."""

from typing import Any

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand
from winhost.cli.options import Duration, fleet_option
from winhost.cli.outputs import answers


@click.command("yield", cls=WinhostCommand)
@click.argument("host", metavar="HOST", **completion.HOSTS)
@click.argument("mode", metavar="[now|auto|never]", required=False, type=click.Choice(("now", "auto", "never")))
@click.option(
    "--within", type=Duration(), default="5m", show_default=True, help="How long to wait until all models have left."
)
@fleet_option
@answers()
def yields(**options: Any) -> int:
    """Let the models of HOST leave their GPUs to something else, and come back.

    now: they leave, and requests get 503 with Retry-After; never: they stay, whoever asks; auto: they leave when a key
    for it asks, as the watcher on a Windows does. Without one of these it shows how it is. now and never hold until
    the gateway stops.
    """
    from winhost.cli.yields import yields as run

    return run(**options)
