"""Arguments, options and help of `winhost diff`."""

from pathlib import Path

import click

from winhost.cli.groups import WinhostCommand, implemented_in
from winhost.cli.outputs import answers


@click.command(cls=WinhostCommand)
@click.argument("before", metavar="FACTS", type=click.Path(path_type=Path))
@click.argument("after", metavar="FACTS", type=click.Path(path_type=Path))
@click.option("--all", "everything", is_flag=True, help="Show what moves by itself, too: free memory, the boot's id.")
@answers(wide=True)
@implemented_in("winhost.cli.diff")
def diff() -> None:
    """Say what changed between two readings, and which verdicts changed because of it.

    Compares two facts files, the older one first; of two folders that detect wrote each host with itself, and of a
    folder and a file the host of the file. What moves by itself counts with --all only.
    """
