"""Arguments, options and help of `winhost assess`."""

from pathlib import Path
from typing import Any

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand
from winhost.cli.options import (
    assume_option,
    at_once_option,
    facts_option,
    fleet_option,
    need_option,
    what_if_option,
    words_argument,
)
from winhost.cli.outputs import answers


@click.command(cls=WinhostCommand)
@words_argument
@facts_option
@click.option("--path", help="Evaluate this path only.", **completion.PATHS)
@need_option
@click.option("--workload", "workload_file", type=click.Path(path_type=Path), help="The workload to be served.")
@what_if_option
@assume_option
@click.option("--explain", "everything", is_flag=True, help="Show every reason of every option, and the notes.")
@click.option("--details", is_flag=True, help="Show each of several hosts in full.")
@click.option("--full", "in_full", is_flag=True, help="With --json or -o yaml: include what decides nothing.")
@fleet_option
@at_once_option
@answers(wide=True)
def assess(**options: Any) -> int:
    """Show which options work on a host, which do not, and why.

    Takes HOSTs from fleet.yaml, or FACTS: facts files, or folders that detect wrote. Changes nothing. Several hosts are
    shown one per row; --details shows each in full.
    """
    from winhost.cli.assess import assess as run

    return run(**options)
