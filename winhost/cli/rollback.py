"""winhost rollback: give back."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand
from winhost.cli.options import run_options
from winhost.cli.outputs import Output

if TYPE_CHECKING:
    from winhost.engine.run import RunContext
    from winhost.engine.run_state import RunState


@click.command(cls=WinhostCommand)
@click.argument("run_name", metavar="RUN", **completion.RUNS)
@run_options
def rollback(
    run_name: str,
    accepted: tuple[str, ...],
    yes: bool,
    guest_deadline: float,
    restart_deadline: float,
    fleet_file: Path | None,
    output: Output,
    as_jsonl: bool,
) -> int:
    """Undo exactly what a RUN changed.

    In reverse, also after a crash and also where part of it was undone by hand. What others use now is kept and said.
    """
    from winhost.cli.output import say
    from winhost.cli.running import Deadlines, asking_for_steps, consents, go_either_way
    from winhost.cli.show_plan import show_steps
    from winhost.engine.undo import look
    from winhost.engine.undo import rollback as go_back

    def ask(record: "RunState", means: "RunContext", given: tuple[str, ...]) -> tuple[str, ...]:
        if yes or not sys.stdin.isatty():
            return given
        steps, back = look(run_name, means)
        show_steps(steps, f"Undo {run_name} on {record.host}")
        for sentence in (*back.kept, *(f"{lacks.title}: cannot be judged: {lacks.why}" for lacks in back.missing)):
            say(f"  {sentence}", hang=2)
        vm, changed = record.plan.wish.vm, record.going_back
        return consents(
            asking_for_steps(record.host, steps, vm=vm, run=run_name, going_back=True, changed=changed), given, yes
        )

    deadlines = Deadlines(guest_deadline, restart_deadline)
    return go_either_way(go_back, "Undo", run_name, accepted, yes, deadlines, fleet_file, output, as_jsonl, ask)
