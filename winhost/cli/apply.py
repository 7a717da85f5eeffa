"""winhost apply: carry out plans."""

import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from winhost.cli.envelope import show_results
from winhost.cli.errors import as_winhost_error
from winhost.cli.first_completion import check_key
from winhost.cli.live_hosts import check_reach
from winhost.cli.named_files import files_of
from winhost.cli.named_hosts import hosts_named
from winhost.cli.options import RunOptions
from winhost.cli.output import say, show_command
from winhost.cli.outputs import Shape
from winhost.cli.running import (
    asking_for,
    begin,
    consents,
    run_context,
    show_ends,
    shown_on,
    stopping,
    under_way,
)
from winhost.cli.show_plan import show_consents, show_short, show_steps
from winhost.core.dataclass import dataclass
from winhost.core.steps import Step
from winhost.engine.failures import EndOfRun
from winhost.engine.many import each
from winhost.engine.planfile import read_plan
from winhost.engine.planning import CheckedPlan
from winhost.engine.run import apply as run
from winhost.engine.run import check
from winhost.engine.run_context import Outcome, RunContext
from winhost.model.durations import DAY, render_age
from winhost.model.errors import Exit, UsageError, WinhostError, visible
from winhost.model.plan import Plan, in_order
from winhost.paths.setting_values import refuse_shared


@dataclass(frozen=True)
class Checked:
    """The result of `apply --check`: the steps that are left of a plan's first stage, what is planned only after it,
    and the consents that they ask for or may ask for.
    """

    host: str
    steps: tuple[Step, ...]
    later: tuple[str, ...]
    risks: tuple[str, ...]
    possible_risks: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan, steps: tuple[Step, ...]) -> "Checked":
        needed = in_order(risk for step in steps for risk in step.risks)
        later = tuple(deferred.title for deferred in plan.deferred)
        return cls(plan.host, steps, later, needed, tuple(risk for risk in plan.possible_risks if risk not in needed))


def apply(
    plans: tuple[Path, ...],
    at_once: int,
    stop_on_failure: bool,
    only_check: bool,
    max_age: int | None,
    options: RunOptions,
) -> int:
    plans = tuple(files_of(plans, Plan))
    checked = [read_plan(path) for path in plans]
    read = [one.plan for one in checked]
    for host, count in Counter(plan.host for plan in read).items():
        if count > 1:
            raise UsageError(
                "SeveralPlans",
                what=f"several of these plans are for {visible(host)}, and plans are applied at the same time",
                hint="Apply one of them; when it has finished, the next: winhost apply PLAN",
                host=host,
            )
    refuse_shared((one.host, one.request.playbook.parsed_settings) for one in checked)
    hosts = {plan.host: hosts_named([plan.host], options.fleet_file)[0] for plan in read}
    for plan in read:
        check_reach(hosts[plan.host], plan)
        check_key(plan)
        _say_age(plan, max_age)
    plans_with_files = list(zip(plans, checked, strict=True))
    if only_check:
        with stopping(len(read)) as stop:
            return _check(
                [
                    (plan, run_context(hosts[plan.host], options, stop, lambda event: None, file))
                    for file, plan in plans_with_files
                ],
                at_once,
                "json" if options.as_jsonl else options.output.shape,
            )
    given = {plan.host: _asked(plan, file, options) for file, plan in zip(plans, read, strict=True)}
    begin(f"Apply {'this plan' if len(read) == 1 else f'these {len(read)} plans'} to {', '.join(hosts)}?", options.yes)
    with under_way(len(read), options.as_jsonl) as (stop, watch):

        def one(named: tuple[Path, CheckedPlan]) -> Outcome:
            file, plan = named
            with watch.at(plan.host, "reading"):
                return run(plan, given[plan.host], run_context(hosts[plan.host], options, stop, watch, file))

        results = each(plans_with_files, one, at_once=at_once, stop_on_failure=stop_on_failure, ours=as_winhost_error)
    ends: list[tuple[str, Outcome | WinhostError]] = [
        (r.item[1].host, _not_begun(r.item[1].host, r.because[1].host) if r.because else r.error or r.given)
        for r in results
    ]
    code = show_ends(ends, options)
    return int(Exit.FAILURE) if code == Exit.USAGE and any(_changed(end) for _, end in ends) else code


def _changed(end: Outcome | WinhostError) -> bool:
    """Tell whether something was done on a host. Then the exit code is not 2, which means that nothing was."""
    if isinstance(end, WinhostError):
        return isinstance(end, EndOfRun) and end.run is not None and end.exit_code != Exit.USAGE
    return end.changed > 0


def _not_begun(host: str, failed: str) -> WinhostError:
    return WinhostError(
        "NotBegun",
        what=f"{host}: not started, because {failed} failed",
        meaning="Nothing was changed there: --stop-on-failure starts no further host after that.",
        hint=f"Apply its plan again once {failed} is repaired.",
        host=host,
    )


def _asked(plan: Plan, file: Path, options: RunOptions) -> tuple[str, ...]:
    """Show the plan on a terminal, and ask for every missing consent. Raises ConsentNeeded."""
    if not options.yes and sys.stdin.isatty():
        with shown_on(options.document):
            show_short(plan)
            show_command("Every step:", "winhost", "apply", str(file), "--check")
    return consents(asking_for(plan, plan.stages), options.accepted, options.yes)


def _check(plans_with_files: Sequence[tuple[CheckedPlan, RunContext]], at_once: int, shape: Shape) -> int:
    """Show the steps that each plan would take now, one after the other."""
    results = each(plans_with_files, lambda work: check(*work), at_once=at_once, ours=as_winhost_error)
    shown = [(result.item[0].host, result.error or Checked.of(result.item[0].plan, result.given)) for result in results]
    return show_results("check", shape, shown, _show_checked)


def _show_checked(checked: Checked) -> None:
    if checked.steps:
        show_steps(checked.steps, f"{checked.host}: what it would do now")
    count = f"{len(checked.steps)} step{'' if len(checked.steps) == 1 else 's'}"
    say(f"{checked.host}: nothing was changed. The host matches the plan; {count} to do now.")
    if checked.later:
        say(f"  Planned later, from the facts read then: {', '.join(checked.later)}", hang=2)
    show_consents(checked.risks, checked.possible_risks)


def _say_age(plan: Plan, max_age: int | None) -> None:
    """Say on stderr that a plan is more than a day old. Raises UsageError: TooOld."""
    age = _age(plan)
    if max_age is not None and (age is None or age > max_age):
        found = "it does not say when it was made" if age is None else render_age(age)
        raise UsageError(
            "TooOld",
            what=f"the plan for {visible(plan.host)} is older than --max-age allows: {found}",
            hint=f"Nothing was changed. Plan again: winhost plan {visible(plan.host)} -o plan.json",
            host=plan.host,
        )
    if age is not None and age > DAY:
        made = f"{plan.host}: this plan was made {render_age(age)} ago"
        say(f"{made}; the host is compared with it before anything is changed.", hang=2, err=True)


def _age(plan: Plan) -> float | None:
    """Return the age in seconds of the older of the plan and its facts; None if neither has a time."""
    times = []
    for text in filter(None, (plan.made_at, plan.facts_read_at)):
        with suppress(ValueError):
            times.append(datetime.fromisoformat(text))
    aware = [time if time.tzinfo else time.replace(tzinfo=UTC) for time in times]
    return (datetime.now(UTC) - min(aware)).total_seconds() if aware else None
