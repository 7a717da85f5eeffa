"""winhost diff: two readings of a host."""

from pathlib import Path

import click

from winhost.cli.groups import Command
from winhost.cli.outputs import Output, answers
from winhost.model.errors import Exit


@click.command(cls=Command)
@click.argument("before", metavar="FACTS", type=click.Path(path_type=Path))
@click.argument("after", metavar="FACTS", type=click.Path(path_type=Path))
@click.option("--all", "everything", is_flag=True, help="Show what moves by itself, too: free memory, the boot's id.")
@answers()
def diff(before: Path, after: Path, everything: bool, output: Output) -> int:
    """Say what changed between two readings, and which verdicts changed because of it.

    Compares two facts files, the older one first. What moves by itself counts with --all only.
    """
    from winhost.cli.envelope import show_results
    from winhost.cli.output import say
    from winhost.cli.show_comparison import show_comparison
    from winhost.compat.answer import difference
    from winhost.resources.factsfile import read_facts

    readings = read_facts(before), read_facts(after)
    compared, document = difference(*readings)

    def show(_: object) -> None:
        for sign, reading in zip("-+", readings, strict=True):
            say(f"{sign} {reading.host}, {reading.origin} at {reading.read_at}", bold=True)
        show_comparison(compared, everything, output.wide)

    show_results("diff", output.shape, [(readings[1].host, document)], show)
    counted = compared.differences if everything else compared.lasting
    return int(Exit.DRIFT if counted or compared.verdicts else Exit.SUCCESS)
