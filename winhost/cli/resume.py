"""winhost resume: go on after a crash, a stop or a missing consent."""

from pathlib import Path

import click

from winhost.cli import completion
from winhost.cli.options import run_options


@click.command()
@click.argument("run_name", metavar="RUN", **completion.RUNS)
@run_options
def resume(
    run_name: str,
    accepted: tuple[str, ...],
    yes: bool,
    guest_deadline: float,
    restart_deadline: float,
    fleet_file: Path | None,
    as_json: bool,
    as_jsonl: bool,
) -> int:
    """Go on with a RUN that was interrupted.

    Waits out what may still be running on the host, reads what is so, and does what is left.
    """
    from winhost.cli.running import Deadlines, go_either_way
    from winhost.engine.run import resume as go_on

    deadlines = Deadlines(guest_deadline, restart_deadline)
    return go_either_way(go_on, "Go on with", run_name, accepted, yes, deadlines, fleet_file, as_json, as_jsonl)
