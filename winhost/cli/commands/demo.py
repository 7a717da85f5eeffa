"""Arguments, options and help of `winhost demo`."""

from pathlib import Path
from typing import Any

import click

from winhost.cli.groups import WinhostCommand
from winhost.cli.options import engine_option


@click.command(cls=WinhostCommand)
@click.argument("path", type=click.Choice(["dda", "wsl2"]), default="dda", metavar="[dda|wsl2]")
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep fleet.yaml, facts, plan and journal in this folder.",
)
@engine_option
def demo(**options: Any) -> None:
    """Show a complete job on simulated hosts, in under a minute.

    dda (the default): a Windows Server 2025 with three GPUs is read over real PowerShell remoting, evaluated, planned
    and changed. It restarts, winhost is killed halfway, and the run is resumed, verified and rolled back. A Windows 11
    PC is refused DDA and shown what it can do instead. On another server winhost makes the VM that gets the GPUs, and
    serves a model from it.

    wsl2: a Windows 11 PC becomes a Linux endpoint with nobody logged on, is asked for a completion, and is rolled back.

    A stand-in answers in place of a model, and says so.
    """
    from winhost.cli.demo import demo as run

    run(**options)
