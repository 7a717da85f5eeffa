"""winhost rollback: give back."""

import sys
from dataclasses import replace

import click

from winhost.cli.options import RunOptions
from winhost.cli.output import say
from winhost.cli.running import asking_for_steps, consents, resume_or_roll_back
from winhost.cli.show_plan import show_steps
from winhost.engine.journal import read_journal
from winhost.engine.rollback import look, waiting_for
from winhost.engine.rollback import rollback as go_back
from winhost.engine.run_context import RunContext
from winhost.engine.run_state import RunState, replay
from winhost.engine.store import Store


def rollback(run_name: str, options: RunOptions) -> int:
    """Undo exactly what a RUN changed."""

    def ask(record: RunState, context: RunContext, given: tuple[str, ...]) -> tuple[str, ...]:
        if options.yes or not sys.stdin.isatty():
            return given
        steps, back, _ = look(run_name, context)
        show_steps(steps, f"Undo {run_name} on {record.host}")
        for sentence in (
            *back.kept,
            *back.along,
            *(f"{unchecked.title}: cannot be checked: {unchecked.why}" for unchecked in back.missing),
        ):
            say(f"  {sentence}", hang=2)
        vm, changed = record.plan.request.vm, record.going_back
        asking = asking_for_steps(record.host, steps, vm=vm, run=run_name, going_back=True, changed=changed)
        return consents(asking, given, False)

    code = resume_or_roll_back(go_back, "Roll back", run_name, options, ask)
    if code or options.yes or options.document or not sys.stdin.isatty():
        return code
    others = replace(options, accepted=())  # those for this run are not for another one
    store = Store()
    host = replay(run_name, read_journal(store.existing(run_name))).host
    codes = (
        rollback(other, others)
        for other in waiting_for(run_name, host, store)
        if click.confirm(f"Look at what the rollback of {other} kept for {run_name}, to undo it now?", err=True)
    )
    return max(codes, default=code)
