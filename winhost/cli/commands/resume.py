"""Arguments, options and help of `winhost resume`."""

from typing import Any

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand
from winhost.cli.options import run_options


@click.command(cls=WinhostCommand)
@click.argument("run_name", metavar="RUN", **completion.RUNS)
@click.option(
    "--vm",
    metavar="NAME",
    help="Assign the GPUs to this VM instead. Only while nothing has been done for the other VM.",
)
@click.option("--gpu", "gpus", multiple=True, metavar="NAME", help="Use this GPU instead, likewise; may be repeated.")
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="Use this setting of the path instead, likewise."
)
@run_options
def resume(**options: Any) -> int:
    """Continue a RUN that was interrupted.

    Waits for anything that may still be running on the host, reads its state, and does what is left. If a later stage
    finds that a VM, GPU or setting you asked for cannot be used, choose another: the rest is planned again and shown,
    and every approval is asked for again.
    """
    from winhost.cli.resume import resume as run

    return run(**options)
