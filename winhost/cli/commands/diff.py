"""Arguments, options and help of `winhost diff`."""

from pathlib import Path
from typing import Any

import click

from winhost.cli.groups import WinhostCommand
from winhost.cli.outputs import answers


@click.command(cls=WinhostCommand)
@click.argument("before", metavar="FACTS", type=click.Path(path_type=Path))
@click.argument("after", metavar="FACTS", type=click.Path(path_type=Path))
@click.option(
    "--all", "everything", is_flag=True, help="Include what changes by itself, such as free memory or the boot id."
)
@answers(wide=True)
def diff(**options: Any) -> int:
    """Compare two snapshots: what changed, and which verdicts changed with it.

    Takes two facts files, the older one first. Of two folders that detect wrote, each host is compared with itself; of
    a folder and a file, only the host in the file. What changes by itself counts only with --all.
    """
    from winhost.cli.diff import diff as run

    return run(**options)
