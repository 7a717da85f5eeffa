"""winhost rollback: give back."""

from pathlib import Path

import click

from winhost.cli import completion
from winhost.cli.options import run_options


@click.command()
@click.argument("run_name", metavar="RUN", **completion.RUNS)
@run_options
def rollback(
    run_name: str,
    accepted: tuple[str, ...],
    yes: bool,
    guest_deadline: float,
    restart_deadline: float,
    fleet_file: Path | None,
    as_json: bool,
    as_jsonl: bool,
) -> int:
    """Undo exactly what a RUN changed.

    In reverse, also after a crash and also where part of it was undone by hand. What others use now is kept and said.
    """
    from winhost.cli.running import Deadlines, go_either_way
    from winhost.engine.undo import rollback as go_back

    deadlines = Deadlines(guest_deadline, restart_deadline)
    return go_either_way(go_back, "Undo", run_name, accepted, yes, deadlines, fleet_file, as_json, as_jsonl)
