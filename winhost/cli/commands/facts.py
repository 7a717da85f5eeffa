"""Arguments, options and help of `winhost facts`."""

from pathlib import Path
from typing import Any

import click

from winhost.cli.groups import WinhostGroup
from winhost.cli.options import force_option
from winhost.cli.outputs import answers

# Said twice, here and in winhost.imports.sources, so that --help need not load the readers.
KINDS: tuple[str, ...] = ("nvidia-smi", "dxdiag", "computer-info", "systeminfo", "lspci", "survey-dda")
KINDS += ("disks", "partitions", "manage-bde", "bcdedit", "msinfo32")


@click.group(cls=WinhostGroup)
def facts() -> None:
    """Make facts files from the output of a machine's own tools."""


@facts.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--host", help="Name for the machine. Default: its own name, if a file contains it.")
@click.option(
    "--kind", type=click.Choice(KINDS), help="The kind of all FILES. Default: recognised from the content of each."
)
@force_option
@answers("FILE", "Write the facts to FILE.", wide=True)
def import_(**options: Any) -> int:
    """Make a facts file of one machine from FILES.

    FILES are the output of nvidia-smi -q -x (on Windows or Linux; its plain table too), Get-ComputerInfo |
    ConvertTo-Json, systeminfo in English (/fo csv too), SurveyDDA.ps1, lspci -vv -nn (from a live Linux on the same
    machine) or dxdiag /x. Facts that no file contains are unknown. If two files differ, the more exact one counts; if
    they are equally exact, the fact is unknown. Unreadable files are left out with a warning; files from two different
    machines are refused.
    """
    from winhost.cli.facts import import_ as run

    return run(**options)
