"""Arguments, options and help of `winhost plan`."""

from pathlib import Path

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand, implemented_in
from winhost.cli.options import (
    Size,
    assume_option,
    at_once_option,
    facts_option,
    fleet_option,
    force_option,
    words_argument,
)
from winhost.cli.outputs import answers


@click.command(cls=WinhostCommand)
@words_argument
@facts_option
@click.option("--path", help="The way to serve, as assess names it. Default: the recommended one.", **completion.PATHS)
@click.option("--vm", help="dda: the VM that gets the cards, by name or GUID. Needed where there are several.")
@click.option("--card", "cards", multiple=True, help="dda: a card, by name or location path. Default: all that can go.")
@click.option("--high", type=Size(), help="dda: high MMIO window, as 64GiB. Default: computed from the cards' BARs.")
@click.option("--low", type=Size(), help="dda: low MMIO window. Default: computed.")
@click.option(
    "--power", type=click.Choice(["as-found", "running", "off"]), help="dda: how the VM ends. Default: as-found."
)
@click.option("--playbook", type=click.Path(path_type=Path), help="Your copy of the path's playbook.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="wsl2: a setting, as network=nat.")
@assume_option
@click.option("--allow-unverified", is_flag=True, help="Plan although something could not be read or is unproven.")
@force_option
@click.option("-v", "--details", is_flag=True, help="Show each plan of several whole.")
@fleet_option
@at_once_option
@answers("FILE", "Write the plan to FILE; of several hosts to FILE/<host>.json.", wide=True)
@implemented_in("winhost.cli.plan")
def plan() -> None:
    """Write down what would change on a host, and how it is taken back.

    Needs HOSTs of fleet.yaml or FACTS (files, or folders that detect wrote). Changes nothing. Without --path it takes
    the recommended option, but never dual-boot, bare-metal, one that needs the consent data, or one that nobody has
    verified.
    """
