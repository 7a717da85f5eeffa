"""winhost rollback: give back."""

import sys
from pathlib import Path

import click

from winhost.cli.output import say
from winhost.cli.outputs import Output
from winhost.cli.running import Deadlines, asking_for_steps, consents, resume_or_roll_back
from winhost.cli.show_plan import show_steps
from winhost.engine.journal import read_journal
from winhost.engine.later_runs import waiting_for
from winhost.engine.rollback import look
from winhost.engine.rollback import rollback as go_back
from winhost.engine.run_context import RunContext
from winhost.engine.run_state import RunState, replay
from winhost.engine.store import Store


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
    """Undo exactly what a RUN changed."""

    def ask(record: RunState, context: RunContext, given: tuple[str, ...]) -> tuple[str, ...]:
        if yes or not sys.stdin.isatty():
            return given
        steps, back = look(run_name, context)
        show_steps(steps, f"Undo {run_name} on {record.host}")
        for sentence in (
            *back.kept,
            *back.along,
            *(f"{unchecked.title}: cannot be checked: {unchecked.why}" for unchecked in back.missing),
        ):
            say(f"  {sentence}", hang=2)
        vm, changed = record.plan.request.vm, record.going_back
        return consents(
            asking_for_steps(record.host, steps, vm=vm, run=run_name, going_back=True, changed=changed), given, yes
        )

    deadlines = Deadlines(guest_deadline, restart_deadline)
    code = resume_or_roll_back(
        go_back, "Roll back", run_name, accepted, yes, deadlines, fleet_file, output, as_jsonl, ask
    )
    if code or yes or as_jsonl or output.shape != "table" or not sys.stdin.isatty():
        return code
    # Consents given for this run are not consents for another one.
    others = (guest_deadline, restart_deadline, fleet_file, output, as_jsonl)
    store = Store()
    host = replay(run_name, read_journal(store.existing(run_name))).host
    codes = (
        rollback(other, (), False, *others)
        for other in waiting_for(run_name, host, store)
        if click.confirm(f"Look at what the rollback of {other} kept for {run_name}, to undo it now?", err=True)
    )
    return max(codes, default=code)
