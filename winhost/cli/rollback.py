"""winhost rollback: give back."""

import sys
from pathlib import Path

from winhost.cli.output import say
from winhost.cli.outputs import Output
from winhost.cli.running import Deadlines, asking_for_steps, consents, resume_or_roll_back
from winhost.cli.show_plan import show_steps
from winhost.engine.rollback import look
from winhost.engine.rollback import rollback as go_back
from winhost.engine.run_context import RunContext
from winhost.engine.run_state import RunState


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
    return resume_or_roll_back(
        go_back, "Roll back", run_name, accepted, yes, deadlines, fleet_file, output, as_jsonl, ask
    )
