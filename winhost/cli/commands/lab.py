"""Arguments, options and help of `winhost lab`."""

from pathlib import Path

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostGroup, implemented_in
from winhost.cli.options import engine_option, force_option
from winhost.cli.outputs import answers


def _number(context: click.Context, option: click.Parameter, value: float) -> float:
    if value != value:  # what is no number is in every range
        raise click.BadParameter("nan is not a number")
    return value


@click.group(cls=WinhostGroup)
def lab() -> None:
    """Simulated hosts behind a real remoting endpoint.

    They answer real PowerShell remoting on loopback, keep state, and obey the rules of Windows that bite; everything
    made from them says `synthetic`. They answer at the level of the agent's JSON contract and run no PowerShell, unless
    they are started with `--engine pwsh`: then the real scripts run here, against stand-ins for the cmdlets of Windows.
    """


@lab.command()
@click.argument("hosts", nargs=-1, required=True, metavar="HOST_OR_FACTS...", **completion.LAB_HOSTS)
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="Where fleet.yaml goes.")
@force_option
@click.option("--tls", is_flag=True, help="Serve HTTPS with a throw-away certificate.")
@engine_option
@click.option(
    "--speed",
    type=click.FloatRange(0.001, 1_000_000),
    callback=_number,
    default=1.0,
    show_default=True,
    help="Lab seconds per real second.",
)
@implemented_in("winhost.cli.lab")
def up() -> None:
    """Serve hosts until Ctrl-C, and write the fleet.yaml that leads to them.

    HOST_OR_FACTS is an example's name (`winhost lab list`), a host file, or facts that detect wrote of a real host, or
    a folder of them: rehearse a plan on the twin of your own.
    """


@lab.command("list")
@answers(wide=True)
@implemented_in("winhost.cli.lab")
def list_hosts() -> None:
    """List the example hosts and situations that winhost ships."""
