"""Arguments, options and help of `winhost facts`."""

from pathlib import Path

import click

from winhost.cli.groups import WinhostGroup, implemented_in
from winhost.cli.options import force_option
from winhost.cli.outputs import answers

# Said twice, here and in winhost.imports.sources, so that --help need not load the readers.
KINDS = ("nvidia-smi", "dxdiag", "computer-info", "systeminfo", "lspci", "survey-dda")


@click.group(cls=WinhostGroup)
def facts() -> None:
    """Make facts of a machine from what its own tools print."""


@facts.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--host", help="What to call the machine. Default: its own name, where a file tells it.")
@click.option("--kind", type=click.Choice(KINDS), help="What the FILES are. Default: recognised by what is in each.")
@force_option
@answers("FILE", "Write the facts to FILE.", wide=True)
@implemented_in("winhost.cli.facts")
def import_() -> None:
    """Make facts of one machine from FILES.

    Each is the output of nvidia-smi -q -x (on Windows or Linux; also its plain table), Get-ComputerInfo |
    ConvertTo-Json, systeminfo in English (also /fo csv), SurveyDDA.ps1, lspci -vv -nn (a live Linux on the same
    machine) or dxdiag /x. What none of them tells is unknown. Where two differ, the more exact counts; what two tell
    equally exactly and differently is unknown. Files that cannot be read are left out with a warning; files of two
    machines are refused.
    """
