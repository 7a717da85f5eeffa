"""Arguments, options and help of `winhost probe`."""

from typing import Any

import click

from winhost.cli.groups import WinhostCommand
from winhost.cli.options import at_once_option, fleet_option, force_option, hosts_argument
from winhost.cli.outputs import answers

PARTS = ("pin-limit", "checkpoint", "nccl", "container")


def _parts(context: click.Context, option: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    given = tuple(part for word in words for part in word.split(",") if part)
    for part in given:
        if part not in PARTS:
            raise click.BadParameter(f"{part!r} is none of: {', '.join(PARTS)}")
    return given


@click.command(cls=WinhostCommand)
@hosts_argument
@click.option(
    "--also",
    "also",
    multiple=True,
    metavar="PART[,PART...]",
    callback=_parts,
    help="Also try what disturbs more: pin-limit (pins up to 4 GiB, which Windows shares), checkpoint (suspends a "
    "process of its own), nccl (an all-reduce over all GPUs), container (driver and NCCL in --image).",
)
@click.option("--image", help="The container image for --also container. It must be there already, with python3.")
@force_option
@fleet_option
@at_once_option
@answers("FOLDER", "Write FOLDER/<host>.json: the facts with what was measured.")
def probe(**options: Any) -> int:
    """Try what the GPUs of HOSTS can do in Linux, and keep it as facts.

    Reads each host as detect does, then tries in its Linux (WSL distro, guest, or a host of its own), over SSH, with
    little memory and in seconds: CUDA, copies, peer-to-peer, CUDA IPC, managed memory and /dev/shm. Verdicts then rest
    on what was measured. A part for which too little memory is free is skipped.
    """
    from winhost.cli.probe import probe as run

    return run(**options)
