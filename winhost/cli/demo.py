"""winhost demo: a whole job, told by the very commands that a user would type, on simulated hosts."""

import tempfile
from pathlib import Path

import click

from winhost.cli.groups import WinhostCommand
from winhost.cli.lab import engine_option


@click.command(cls=WinhostCommand)
@click.argument("story", type=click.Choice(["dda", "wsl2"]), default="dda", metavar="[dda|wsl2]")
@click.option(
    "--keep", type=click.Path(path_type=Path, file_okay=False), help="Keep fleet.yaml, facts, plan and journal."
)
@engine_option
def demo(story: str, keep: Path | None, engine: str) -> None:
    """Tell a whole job on simulated hosts, in under a minute.

    dda, the main job: a Windows Server 2025 with three cards is read over real PowerShell remoting, judged, planned
    and changed; it restarts, its controller is killed, the run is resumed, verified, and the host is given back as it
    was found. A Windows 11 beside it is refused DDA and told what it can do.

    wsl2: a Windows 11 becomes a Linux endpoint, unattended, and is given back.
    """
    from winhost.cli.demo_dda import DdaDemo
    from winhost.cli.demo_wsl2 import Wsl2Demo

    told = {"dda": DdaDemo, "wsl2": Wsl2Demo}[story]
    with tempfile.TemporaryDirectory(prefix="winhost-demo-") as folder:
        told(keep or Path(folder), engine).tell()
