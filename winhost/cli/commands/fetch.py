"""Arguments, options and help of `winhost fetch`."""

from pathlib import Path
from typing import Any

import click

from winhost.cli.groups import WinhostCommand
from winhost.cli.outputs import answers


@click.command(cls=WinhostCommand)
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@click.option(
    "--there",
    metavar="PATH",
    default="/srv/winhost-offline",
    show_default=True,
    help="Where the folder will lie on the Linux that serves.",
)
@click.option(
    "--platform",
    type=click.Choice(("linux/amd64", "linux/arm64")),
    default="linux/amd64",
    show_default=True,
    help="For which machine images are fetched.",
)
@click.option(
    "--release",
    type=click.Choice(("ubuntu-22.04", "ubuntu-24.04", "debian-12", "debian-13")),
    help="Fetch packages as well, from the archive of this release, by its signed lists.",
)
@click.option("--archive", metavar="URL", help="A mirror of that archive, over https.")
@answers("FOLDER", "The folder to fill.", required=True)
def fetch(**options: Any) -> int:
    """Collect what PLAN downloads, for a host without a network.

    Fills a folder with the images of containers, the files of models and the image of a new VM, and with --release the
    packages, each checked by its hash, with checksums, and with the plan that takes them from there. Run it again to go
    on where it ended. Carry the folder to the host and to the computer that applies its plan.json.
    """
    from winhost.cli.fetch import fetch as run

    return run(**options)
