"""winhost apply, resume and rollback: carry out plans, continue an interrupted run, or undo one."""

import copy
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any, get_args

import click

from winhost.cli.change.running import (
    ask_for_consents,
    confirm_start,
    consent_request,
    consent_request_for_steps,
    reserve_stdout,
    resume_or_roll_back,
    run_context,
    run_control,
    show_outcomes,
    stop_requests,
)
from winhost.cli.envelope import show_results
from winhost.cli.errors import as_winhost_error
from winhost.cli.live_hosts import check_linux_key
from winhost.cli.named_files import expand_files
from winhost.cli.named_hosts import resolve_hosts
from winhost.cli.options import SIZE, RunOptions
from winhost.cli.output import say, show_command
from winhost.cli.plan.commands import Power
from winhost.cli.plan.options import FleetKeys, apply_settings, given_keys, read_settings
from winhost.cli.plan.show import show_brief_plan, show_consents, show_stage, show_steps, title_without_name
from winhost.cli.tables import format_pair
from winhost.cli.up.first_completion import check_key
from winhost.core.dataclass import dataclass
from winhost.core.steps import Step
from winhost.engine import disk_images
from winhost.engine.amend import Amendment, request_changes
from winhost.engine.failures import RunInterrupted
from winhost.engine.many import run_all
from winhost.engine.planfile import read_plan
from winhost.engine.planning import CheckedPlan, request_of
from winhost.engine.rollback import preview_on_host, waiting_for
from winhost.engine.rollback import rollback as roll_back
from winhost.engine.run import apply as apply_plan
from winhost.engine.run import check, preview_amended
from winhost.engine.run import resume as resume_run
from winhost.engine.run_context import Outcome, RunContext
from winhost.engine.run_state import RunState
from winhost.engine.store import Store
from winhost.model.durations import DAY, render_age
from winhost.model.errors import Exit, UsageError, WinhostError, visible
from winhost.model.fleet import AnyHost
from winhost.model.plan import Plan, sort_risks
from winhost.paths.playbook import PathRequest
from winhost.paths.setting_values import refuse_shared


@dataclass(frozen=True)
class Checked:
    """The result of `apply --check`: the remaining steps of a plan's first stage, the titles of the steps that are
    planned after it, and the consents that they need or may need.
    """

    host: str
    steps: tuple[Step, ...]
    later: tuple[str, ...]
    risks: tuple[str, ...]
    possible_risks: tuple[str, ...]

    @classmethod
    def from_plan(cls, plan: Plan, steps: tuple[Step, ...]) -> "Checked":
        needed = sort_risks(risk for step in steps for risk in step.risks)
        later = tuple(dict.fromkeys(title_without_name(deferred) for deferred in plan.deferred))
        return cls(plan.host, steps, later, needed, tuple(risk for risk in plan.possible_risks if risk not in needed))


def apply(
    plans: tuple[Path, ...],
    at_once: int,
    stop_on_failure: bool,
    check_only: bool,
    max_age: int | None,
    options: RunOptions,
) -> int:
    checked_plans = [(file, read_plan(file)) for file in expand_files(plans, Plan)]
    for host, count in Counter(checked.host for _, checked in checked_plans).items():
        if count > 1:
            raise UsageError(
                "SeveralPlans",
                what=f"several of these plans are for {visible(host)}, and plans are applied at the same time",
                hint="Apply one of them; when it has finished, the next: winhost apply PLAN",
                host=host,
            )
    refuse_shared((checked.host, checked.request.playbook.parsed_settings) for _, checked in checked_plans)
    hosts = {checked.host: resolve_hosts([checked.host], options.fleet_file)[0] for _, checked in checked_plans}
    for _, checked in checked_plans:
        check_linux_key(hosts[checked.host], checked.plan)
        check_key(checked.plan)
        _warn_if_old(checked.plan, max_age)
    if check_only:
        return _check_hosts(checked_plans, hosts, at_once, options)
    consents = {checked.host: _show_and_ask(checked.plan, file, options) for file, checked in checked_plans}
    count = len(checked_plans)
    confirm_start(f"Apply {'this plan' if count == 1 else f'these {count} plans'} to {', '.join(hosts)}?", options.yes)
    with run_control(count, options.as_jsonl) as (stop, watch):

        def apply_to_host(item: tuple[Path, CheckedPlan]) -> Outcome:
            file, checked = item
            host = hosts[checked.host]
            with watch.activity(host.name, "reading"):
                context = run_context(host, options, stop, watch, file)
                return apply_plan(checked, consents[checked.host], context)

        results = run_all(
            checked_plans,
            apply_to_host,
            at_once=at_once,
            stop_on_failure=stop_on_failure,
            to_user_error=as_winhost_error,
        )
    outcomes: list[tuple[str, Outcome | WinhostError]] = []
    for result in results:
        host, outcome = result.item[1].host, result.error
        if result.failed_item:
            failed = result.failed_item[1].host
            outcome = WinhostError(
                "NotBegun",
                what=f"{host}: not started, because {failed} failed",
                meaning="Nothing was changed there: --stop-on-failure starts no further host after that.",
                hint=f"Apply its plan again once {failed} is repaired.",
                host=host,
            )
        outcomes.append((host, outcome or result.required_value))
    code = show_outcomes(outcomes, options)
    return int(Exit.FAILURE) if code == Exit.USAGE and any(_has_changed(outcome) for _, outcome in outcomes) else code


def _check_hosts(
    checked_plans: Sequence[tuple[Path, CheckedPlan]], hosts: Mapping[str, AnyHost], at_once: int, options: RunOptions
) -> int:
    with stop_requests(len(checked_plans)) as stop:
        items = [
            (checked, run_context(hosts[checked.host], options, stop, lambda event: None, file))
            for file, checked in checked_plans
        ]
        results = run_all(items, lambda item: check(*item), at_once=at_once, to_user_error=as_winhost_error)
        checks: list[tuple[str, Checked | WinhostError]] = []
        for result in results:
            checked, _ = result.item
            checks.append((checked.host, result.error or Checked.from_plan(checked.plan, result.required_value)))
        return show_results("check", "json" if options.as_jsonl else options.output.shape, checks, _show_checked)


def _has_changed(outcome: Outcome | WinhostError) -> bool:
    """Tell whether the run changed something on its host. If so, the exit code is not 2, which says that nothing was
    changed.
    """
    if isinstance(outcome, WinhostError):
        return isinstance(outcome, RunInterrupted) and outcome.run is not None and outcome.exit_code != Exit.USAGE
    return outcome.changed > 0


def _show_and_ask(plan: Plan, file: Path, options: RunOptions) -> tuple[str, ...]:
    """Show the plan on a terminal, ask for every missing consent, and return all consents. Raises ConsentNeeded."""
    if not options.yes and sys.stdin.isatty():
        with reserve_stdout(options.document):
            show_brief_plan(plan)
            show_command("Every step:", "winhost", "apply", str(file), "--check")
    return ask_for_consents(consent_request(plan, plan.stages), options.accepted, options.yes)


def _show_checked(checked: Checked) -> None:
    if checked.steps:
        show_steps(checked.steps, f"{checked.host}: what it would do now")
    count = f"{len(checked.steps)} step{'' if len(checked.steps) == 1 else 's'}"
    say(f"{checked.host}: nothing was changed. The host matches the plan; {count} to do now.")
    if checked.later:
        say(f"  Planned later, from the facts read then: {', '.join(checked.later)}", hang=2)
    show_consents(checked.risks, checked.possible_risks)


def _warn_if_old(plan: Plan, max_age: int | None) -> None:
    """Warn on stderr if a plan, or its facts, are more than a day old. Raises UsageError (TooOld) if they are older
    than max_age, in seconds.
    """
    times = []
    for text in filter(None, (plan.made_at, plan.facts_read_at)):
        with suppress(ValueError):
            time = datetime.fromisoformat(text)
            times.append(time if time.tzinfo else time.replace(tzinfo=UTC))
    age = (datetime.now(UTC) - min(times)).total_seconds() if times else None
    if max_age is not None and (age is None or age > max_age):
        reported_age = "it does not say when it was made" if age is None else render_age(age)
        raise UsageError(
            "TooOld",
            what=f"the plan for {visible(plan.host)} is older than --max-age allows: {reported_age}",
            hint=f"Nothing was changed. Plan again: winhost plan {visible(plan.host)} -o plan.json",
            host=plan.host,
        )
    if age is not None and age > DAY:
        sentence = f"{plan.host}: this plan was made {render_age(age)} ago"
        say(f"{sentence}; the host is compared with it before anything is changed.", hang=2, err=True)


def resume(run_name: str, vm: str | None, gpus: tuple[str, ...], settings: tuple[str, ...], options: RunOptions) -> int:
    amendment: Amendment | None = None

    def preview(record: RunState, context: RunContext, accepted: tuple[str, ...]) -> tuple[str, ...]:
        nonlocal amendment
        if not (vm or gpus or settings):
            return accepted
        choices = [("--vm", vm)] if vm else []
        choices += [("--gpu", gpu) for gpu in gpus] + [("--set", setting) for setting in settings]
        arguments = [argument for choice in choices for argument in choice]
        request = amend_request(request_of(record.plan), vm, gpus, settings)
        for note in FleetKeys(options.fleet_file).check(record.host, given_keys(request)):
            say(f"{record.host}: {note}")
        stage = preview_amended(record.run, request, context)
        for change in request_changes(record.plan.request, request.document):
            text = f"{change.name}: {' → '.join(format_pair(change.old, change.new))}"
            say(f"{record.host}: {text}. The remaining steps, planned again:")
        show_stage(stage)
        retry_options = shlex.join(arguments)
        plan = replace(record.plan, request=request.document)
        consents_needed = consent_request(plan, [stage], run=record.run, changed=True, retry_options=retry_options)
        amendment = Amendment(request, stage, retry_options)
        return ask_for_consents(consents_needed, accepted, options.yes)

    def action(name: str, accepted: tuple[str, ...], context: RunContext) -> Any:
        return resume_run(name, accepted, context, amendment)

    outcome = resume_or_roll_back(action, "Resume", run_name, options, preview)
    return show_outcomes([(outcome.host, outcome)], options)


def amend_request(
    request: PathRequest, vm: str | None, gpus: tuple[str, ...], settings: tuple[str, ...]
) -> PathRequest:
    """Replace values of a request. Raises click.UsageError for values of another path, and as `pin_image` does."""
    options = _OPTIONS.get(request.path, {})
    if not options and (vm or gpus):
        raise click.UsageError(f"--vm and --gpu do not belong to {request.path}; its settings are chosen with --set")
    option_settings = [*(setting for setting in settings if setting.partition("=")[0] in options)]
    path_settings = tuple(setting for setting in settings if setting not in option_settings)
    if path_settings:
        request = _replace_settings(request, read_settings(path_settings))
    return _replace_options(
        request, [*option_settings, *([f"vm={vm}"] if vm else []), *(f"gpu={gpu}" for gpu in gpus)], options
    )


def _replace_settings(request: PathRequest, settings: tuple[str, ...]) -> PathRequest:
    """Replace settings. The hash of an image is removed if its settings change, and a new one is pinned."""
    current = copy.deepcopy(request.playbook.settings)
    for prefix, group, pin in _PINS:
        if any(setting.startswith(prefix) for setting in settings):
            reduce(lambda group_, name: group_.get(name) or {}, group, current).pop(pin, None)
    request = request.with_playbook(apply_settings(request.playbook.with_settings(current), settings))
    if disk_images.has_unpinned_image(request):
        from winhost.cli.plan.new_vm_image import pin_image  # loads all that finds images

        request = pin_image(request, lambda doing, done, total: None)
    return request


def _replace_options(
    request: PathRequest, settings: list[str], options: Mapping[str, Callable[[str], object]]
) -> PathRequest:
    values_by_name: dict[str, list[object]] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if not value.strip():
            raise click.BadParameter(f"{visible(setting)!r} is not NAME=VALUE", param_hint="--set")
        values_by_name.setdefault(name, []).append(options[name](value))
    values: dict[str, Any] = {name: values_[-1] for name, values_ in values_by_name.items() if name != "gpu"}
    if "gpu" in values_by_name:
        values["gpus"] = tuple(values_by_name["gpu"])
    return request.with_options(**values) if values else request


# Settings that a plan pins by a hash: their prefix, the group that contains the hash, and its name there.
_PINS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("new_vm.image.", ("new_vm", "image"), "pinned"),
    ("system.installer=", ("system",), "sha256"),
    ("system.mirror=", ("system",), "sha256"),
)

# Names for --set in addition to the settings of a path: values for which `winhost plan` has options.
_OPTIONS: Mapping[str, Mapping[str, Callable[[str], Any]]] = {
    "dda": {"vm": str, "gpu": str, "high": SIZE, "low": SIZE, "power": click.Choice(get_args(Power))}
}


def rollback(run_name: str, options: RunOptions) -> int:

    def preview(record: RunState, context: RunContext, accepted: tuple[str, ...]) -> tuple[str, ...]:
        if options.yes or not sys.stdin.isatty():
            return accepted
        steps, outlook, _ = preview_on_host(run_name, context)
        show_steps(steps, f"Undo {run_name} on {record.host}")
        for sentence in (
            *outlook.kept,
            *outlook.removed_with_parent,
            *(f"{unchecked.title}: cannot be checked: {unchecked.why}" for unchecked in outlook.missing),
        ):
            say(f"  {sentence}", hang=2)
        vm, changed = record.plan.request.vm, record.going_back
        request = consent_request_for_steps(record.host, steps, vm=vm, run=run_name, going_back=True, changed=changed)
        return ask_for_consents(request, accepted, False)

    outcome = resume_or_roll_back(roll_back, "Roll back", run_name, options, preview)
    code = show_outcomes([(outcome.host, outcome)], options)
    if code or options.yes or options.document or not sys.stdin.isatty():
        return code
    other_options = replace(options, accepted=())  # an approval for this run does not count for another
    store = Store()
    codes = (
        rollback(other_run, other_options)
        for other_run in waiting_for(run_name, outcome.host, store)
        if click.confirm(f"Look at what the rollback of {other_run} kept for {run_name}, to undo it now?", err=True)
    )
    return max(codes, default=code)
