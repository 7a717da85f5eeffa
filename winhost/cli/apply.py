"""winhost apply: do what plans say."""

from pathlib import Path
from typing import Any

import click

from winhost.cli.options import at_once_option, run_options


@click.command()
@click.argument("plans", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PLAN...")
@run_options
@at_once_option
@click.option("--stop-on-failure", is_flag=True, help="Begin no other host once one has failed.")
def apply(
    plans: tuple[Path, ...],
    accepted: tuple[str, ...],
    yes: bool,
    guest_deadline: float,
    restart_deadline: float,
    fleet_file: Path | None,
    at_once: int,
    stop_on_failure: bool,
    as_json: bool,
    as_jsonl: bool,
) -> int:
    """Do what PLANS say, with a journal and a way back.

    Refuses when a host is no longer as its plan saw it (exit 4). Survives restarts and being killed: see
    `winhost runs`, then `resume` or `rollback`. Ctrl-C stops after the step in flight.
    """
    from winhost.cli.output import print_line, show_results
    from winhost.cli.reach import hosts_named, worst
    from winhost.cli.running import Deadlines, begin, consents, means_for, outcome_code, show_outcome, stop_on_interrupt
    from winhost.cli.watch import watching
    from winhost.engine.many import each
    from winhost.engine.run import apply as run
    from winhost.model.documents import read_document
    from winhost.model.plan import Plan, in_order

    read = [read_document(path, Plan) for path in plans]
    hosts = {plan.host: hosts_named([plan.host], fleet_file)[0] for plan in read}
    needed = in_order(risk for plan in read for risk in plan.risks)
    maybe = in_order({risk for plan in read for risk in plan.possible_risks} - set(needed))
    accepted = consents(needed, accepted, maybe)
    begin(f"Apply {len(read)} plan(s) to {', '.join(hosts)}?", yes)
    deadlines = Deadlines(guest_deadline, restart_deadline)
    with watching(as_jsonl) as watch, stop_on_interrupt() as stop:

        def one(plan: Plan) -> Any:
            return run(plan, accepted, means_for(hosts[plan.host], deadlines, stop, watch))

        results = each(read, one, at_once=at_once, stop_on_failure=stop_on_failure)
    shown = [{"host": result.work.host, "outcome": result.value, "error": result.error} for result in results]
    if as_jsonl:
        for result in shown:
            print_line(result)
    else:
        show_results(as_json, shown, lambda result: show_outcome(result["outcome"]))
    codes = [outcome_code(result.value) for result in results if result.value]
    return worst([result.error for result in results], max(codes, default=0))
