"""Arguments, options and help of `winhost demo`."""

from pathlib import Path

import click

from winhost.cli.groups import WinhostCommand, implemented_in
from winhost.cli.options import engine_option


@click.command(cls=WinhostCommand)
@click.argument("path", type=click.Choice(["dda", "wsl2"]), default="dda", metavar="[dda|wsl2]")
@click.option(
    "--keep", type=click.Path(path_type=Path, file_okay=False), help="Keep fleet.yaml, facts, plan and journal."
)
@engine_option
@implemented_in("winhost.cli.demo")
def demo() -> None:
    """Tell a whole job on simulated hosts, in under a minute.

    dda, the main job: a Windows Server 2025 with three cards is read over real PowerShell remoting, judged, planned
    and changed; it restarts, its controller is killed, the run is resumed, verified, and the host is given back as it
    was found. A Windows 11 beside it is refused DDA and told what it can do.

    wsl2: a Windows 11 becomes a Linux endpoint, unattended, and is given back.
    """
