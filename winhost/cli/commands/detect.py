"""Arguments, options and help of `winhost detect`."""

import click

from winhost.cli.groups import WinhostCommand, implemented_in
from winhost.cli.options import at_once_option, fleet_option, force_option, hosts_argument
from winhost.cli.outputs import answers


@click.command(cls=WinhostCommand)
@hosts_argument
@force_option
@fleet_option
@at_once_option
@answers("FOLDER", "Write FOLDER/<host>.json.", wide=True)
@implemented_in("winhost.cli.detect")
def detect() -> None:
    """Read what HOSTS are.

    Changes nothing. HOSTS are names of fleet.yaml, patterns ('gpu-*') or groups ('@lab'). Where an account of winhost's
    owns a WSL distro, its task is asked, which logs that account on (docs/safety.md).
    """
