"""Arguments, options and help of `winhost detect`."""

from typing import Any

import click

from winhost.cli.groups import WinhostCommand
from winhost.cli.options import at_once_option, fleet_option, force_option, hosts_argument
from winhost.cli.outputs import answers


@click.command(cls=WinhostCommand)
@hosts_argument
@force_option
@fleet_option
@at_once_option
@answers("FOLDER", "Write FOLDER/<host>.json.", wide=True)
def detect(**options: Any) -> int:
    """Read HOSTS: hardware, Windows, VMs and WSL.

    Changes nothing. HOSTS are names from fleet.yaml, patterns ('gpu-*') or groups ('@lab'). If an account created by
    winhost owns a WSL distro, the distro is read through that account's scheduled task, which logs the account on (see
    docs/safety.md).
    """
    from winhost.cli.detect import detect as run

    return run(**options)
