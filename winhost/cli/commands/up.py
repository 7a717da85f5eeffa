"""Arguments, options and help of `winhost up`."""

from typing import Any

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand
from winhost.cli.options import run_options
from winhost.cli.stack_options import stack_options


@click.command(cls=WinhostCommand)
@click.argument("model", metavar="[MODEL]", required=False)
@click.option(
    "--on", metavar="HOST", help="A host of fleet.yaml, or USER@ADDRESS. Default: this machine.", **completion.HOSTS
)
@click.option("--path", help="The option, as assess names it. Default: the recommended one.", **completion.PATHS)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the path, as of plan.")
@click.option(
    "--allow-unverified",
    is_flag=True,
    help="Go on even if a required fact could not be read or the option is unproven.",
)
@click.option("--details", is_flag=True, help="Show every step with its reason before the summary.")
@stack_options(leave_out=("--workload",))
@run_options
def up(**options: Any) -> int:
    """Serve a MODEL on this machine, or on another.

    MODEL is ORG/NAME on Hugging Face, a name that `winhost models` shows, or a folder such as ./Qwen3-8B. Default: the
    one that fits the GPUs best. Shows on one screen what would change, then asks once. `winhost down` undoes it. After
    a restart or Ctrl-C, type it again.
    """
    from winhost.cli.up import up as run

    return run(**options)
