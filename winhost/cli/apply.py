"""winhost apply: do what plans say."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from winhost.cli.options import at_once_option, run_options
from winhost.model.errors import UsageFault, WinhostError, failed, visible


@dataclass(eq=False)
class NotBegun(WinhostError):
    """Another host failed first, and --stop-on-failure was given."""

    host: str
    failed: str

    @property
    def what(self) -> str:
        return f"{self.host}: not begun, because {self.failed} failed"

    @property
    def meaning(self) -> str:
        return "Nothing was changed there: --stop-on-failure begins no other host after that."

    @property
    def hint(self) -> str:
        return f"Apply its plan again once {self.failed} is mended."


@dataclass(eq=False)
class SeveralPlans(UsageFault):
    """Two plans for one host would be carried out at the same time."""

    host: str

    @property
    def what(self) -> str:
        return f"several of these plans are for {visible(self.host)}, and plans are applied at the same time"

    @property
    def hint(self) -> str:
        return "Apply one of them; once it is through, the next: winhost apply PLAN"


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
    from winhost.cli.answers import Ended
    from winhost.cli.envelope import show_results
    from winhost.cli.output import print_line
    from winhost.cli.reach import check_reach, hosts_named, worst
    from winhost.cli.running import Deadlines, begin, consents, means_for, outcome_code, show_outcome, stopping
    from winhost.cli.watch import watching
    from winhost.engine.many import each
    from winhost.engine.run import apply as run
    from winhost.model.documents import read_document
    from winhost.model.plan import Plan, in_order

    read = [read_document(path, Plan) for path in plans]
    for host, count in Counter(plan.host for plan in read).items():
        if count > 1:
            raise SeveralPlans(host)
    hosts = {plan.host: hosts_named([plan.host], fleet_file)[0] for plan in read}
    for plan in read:
        check_reach(hosts[plan.host], plan)
    needed = in_order(risk for plan in read for risk in plan.risks)
    maybe = in_order({risk for plan in read for risk in plan.possible_risks} - set(needed))
    accepted = consents(needed, accepted, maybe)
    begin(f"Apply {len(read)} plan(s) to {', '.join(hosts)}?", yes)
    deadlines = Deadlines(guest_deadline, restart_deadline)
    with stopping(len(read)) as stop, watching(as_jsonl) as watch:

        def one(named: tuple[Path, Plan]) -> Any:
            file, plan = named
            with watch.at(plan.host, "reading"):
                return run(plan, accepted, means_for(hosts[plan.host], deadlines, stop, watch, file))

        results = each(list(zip(plans, read, strict=True)), one, at_once=at_once, stop_on_failure=stop_on_failure)
    errors = [r.error or (NotBegun(r.work[1].host, r.because[1].host) if r.because else None) for r in results]
    shown: list[tuple[str, Ended | WinhostError]] = [
        (plan.host, error or Ended(plan.host, result.given))
        for plan, result, error in zip(read, results, errors, strict=True)
    ]
    if as_jsonl:
        for host, ended in shown:
            print_line(failed(ended, host) if isinstance(ended, WinhostError) else ended)
    else:
        show_results("outcome", as_json, shown, lambda ended: show_outcome(ended.outcome))
    codes = [outcome_code(result.value) for result in results if result.value]
    return worst(errors, max(codes, default=0))
