"""Arguments, options and help of `winhost demo`."""

from pathlib import Path
from typing import Any

import click

from winhost.cli.groups import WinhostCommand
from winhost.cli.options import engine_option


@click.command(cls=WinhostCommand)
@click.argument("path", type=click.Choice(["dda", "wsl2"]), required=False, metavar="[dda|wsl2]")
@click.option("--full", "in_full", is_flag=True, help="Play both jobs in full, every step of them.")
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep fleet.yaml, facts, plan and journal in this folder.",
)
@engine_option
def demo(**options: Any) -> None:
    """Show complete jobs on simulated hosts, in under a minute.

    A Windows 11 desktop goes from nothing to a model that answers, and back, by up, chat and down. A Windows Server
    gives its GPUs to a VM; winhost is killed halfway, and the run is resumed and rolled back.

    wsl2 and dda play one job in full, with every command of the long way: a Windows 11 PC becomes a Linux endpoint with
    nobody logged on; a Windows Server 2025 with three GPUs is read over real PowerShell remoting, evaluated, planned
    and changed, and on another server winhost makes the VM that gets the GPUs.

    A stand-in answers in place of a model, and says so.
    """
    from winhost.cli.demo import demo as run

    run(**options)
