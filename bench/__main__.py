"""`make bench`: the table. Ratios only: seconds say more about the machine than about the program."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from bench import gateway, neighbours
from bench.commands import help_start, offline_assess, offline_plan
from bench.fleet import further_host
from bench.judging import assessing, explaining, judging
from bench.linux import looked_at
from bench.measure import Case, NotHere, Ratio, measure
from bench.turns import first_swap, later_swap
from bench.wire import detect
from winhost.cli.tables import table

PREPARE: tuple[Callable[[Path], AbstractContextManager[Case]], ...] = (
    help_start,
    offline_plan,
    offline_assess,
    detect,
    further_host,
    judging,
    assessing,
    explaining,
    looked_at,
    first_swap,
    later_swap,
)


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=15, show_default=True, help="Rounds per row.")
def bench(rounds: int) -> None:
    """Hold what winhost does against the least that the same job can cost."""
    table(
        ("what", "against", "ratio", "min to max", "aim"),
        [_row(prepare, rounds) for prepare in PREPARE],
        title=f"Ratios over {rounds} rounds, the middle one first",
    )
    click.echo("Taken turn about in one run. Ratios, too, differ from machine to machine and with what else it does;")
    click.echo("the lab is no Windows, and its wire is loopback: on a network the share of our own work is smaller.")
    gateway.show(max(1, rounds // 5))
    neighbours.show()


def _row(prepare: Callable[[Path], AbstractContextManager[Case]], rounds: int) -> tuple[str, ...]:
    try:
        with TemporaryDirectory() as folder, prepare(Path(folder)) as case:
            click.echo(f"{case.what} …", err=True)
            found = measure(case, rounds)
    except NotHere as why:
        return (prepare.__name__, f"not run: {why}", "", "", "")
    return (
        case.what,
        case.against,
        _times(found.middle),
        f"{_times(found.least)} to {_times(found.most)}",
        _aim(case, found),
    )


def _aim(case: Case, found: Ratio) -> str:
    if case.aim is None:
        return ""
    return f"at most {_times(case.aim)}: {'met' if found.middle <= case.aim else 'missed'}"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x"


if __name__ == "__main__":
    bench()
