"""Arguments, options and help of `winhost lab` and `winhost demo`."""

from pathlib import Path

import click

from winhost.cli import completion, options
from winhost.cli.groups import WinhostCommand, WinhostGroup, implemented_in


def _refuse_nan(context: click.Context, option: click.Parameter, value: float) -> float:
    if value != value:  # click's range accepts nan
        raise click.BadParameter("nan is not a number")
    return value


@click.group(cls=WinhostGroup)
def lab() -> None:
    """Simulate hosts behind a real remoting endpoint.

    The hosts answer real PowerShell remoting on loopback, keep state, and enforce the Windows restrictions that matter.
    Facts and plans that come from them are marked `synthetic`. The hosts implement the agent's JSON contract and run no
    PowerShell. With `--engine pwsh`, the real scripts run on this computer, against stand-ins for the Windows cmdlets.
    """


@lab.command()
@click.argument("hosts", nargs=-1, required=True, metavar="HOST_OR_FACTS...", **completion.LAB_HOSTS)
@click.option(
    "-o",
    "--output",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder to write fleet.yaml to.",
)
@options.force
@click.option("--tls", is_flag=True, help="Serve HTTPS with a temporary certificate.")
@options.engine
@click.option(
    "--speed",
    metavar="N",
    type=options.Number(0.001, 1_000_000),
    callback=_refuse_nan,
    default=1.0,
    show_default=True,
    help="Simulated seconds per real second.",
)
@implemented_in("lab.lab")
def up() -> None:
    """Serve simulated hosts until Ctrl-C, and write a fleet.yaml for them.

    HOST_OR_FACTS is the name of an example (see `winhost lab list`), a host file, a facts file that detect wrote, or a
    folder of those. With facts of your own host, you can rehearse a plan on a replica.
    """


@lab.command("list")
@options.output_options(wide=True)
@implemented_in("lab.lab")
def list_hosts() -> None:
    """List the example hosts that come with winhost."""


@click.command(cls=WinhostCommand)
@click.argument("path", type=click.Choice(["dda", "wsl2"]), required=False, metavar="[dda|wsl2]")
@click.option("--full", "in_full", is_flag=True, help="Play both jobs in full, every step of them.")
@click.option(
    "--keep",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep fleet.yaml, facts, plan and journal in this folder.",
)
@options.engine
@implemented_in("lab.demo")
def demo() -> None:
    """Show complete jobs on simulated hosts, in under a minute.

    On a Windows 11 desktop, up, chat and down set up a model that answers, and remove it again. A Windows Server gives
    its GPUs to a VM; winhost is killed halfway, and the run is resumed and rolled back.

    wsl2 and dda play one job in full, command by command. wsl2: a Windows 11 PC becomes a Linux endpoint that needs no
    logon. dda: winhost reads a Windows Server 2025 with three GPUs over real PowerShell remoting, evaluates, plans and
    changes it, and on another server makes the VM that gets the GPUs.

    A stand-in answers instead of a model, and says so.
    """
