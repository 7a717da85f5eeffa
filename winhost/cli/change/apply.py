"""winhost apply, resume and rollback: carry out plans, continue an interrupted run, or undo one."""

import copy
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any, get_args

import click

from winhost.cli.change.running import (
    asking_for,
    asking_for_steps,
    begin,
    consents,
    ended_run,
    run_context,
    show_ends,
    shown_on,
    stopping,
    under_way,
)
from winhost.cli.envelope import show_results
from winhost.cli.errors import as_winhost_error
from winhost.cli.live_hosts import check_reach
from winhost.cli.named_files import files_of
from winhost.cli.named_hosts import hosts_named
from winhost.cli.options import SIZE, RunOptions
from winhost.cli.output import say, show_command
from winhost.cli.plan.commands import Power
from winhost.cli.plan.options import FleetKeys, decided, given_keys, read_settings
from winhost.cli.plan.show import show_consents, show_short, show_stage, show_steps, title_without_name
from winhost.cli.tables import format_two
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
from winhost.engine.rollback import rollback as go_back
from winhost.engine.run import apply as run
from winhost.engine.run import check, preview_amended
from winhost.engine.run import resume as go_on
from winhost.engine.run_context import Outcome, RunContext
from winhost.engine.run_state import RunState
from winhost.engine.store import Store
from winhost.model.durations import DAY, render_age
from winhost.model.errors import Exit, UsageError, WinhostError, visible
from winhost.model.plan import Plan, sort_risks
from winhost.paths.playbook import PathRequest
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
        needed = sort_risks(risk for step in steps for risk in step.risks)
        later = tuple(dict.fromkeys(title_without_name(deferred) for deferred in plan.deferred))
        return cls(plan.host, steps, later, needed, tuple(risk for risk in plan.possible_risks if risk not in needed))


def apply(
    plans: tuple[Path, ...],
    at_once: int,
    stop_on_failure: bool,
    only_check: bool,
    max_age: int | None,
    options: RunOptions,
) -> int:
    plans_with_files = [(file, read_plan(file)) for file in files_of(plans, Plan)]
    read = [checked.plan for _, checked in plans_with_files]
    for host, count in Counter(plan.host for plan in read).items():
        if count > 1:
            raise UsageError(
                "SeveralPlans",
                what=f"several of these plans are for {visible(host)}, and plans are applied at the same time",
                hint="Apply one of them; when it has finished, the next: winhost apply PLAN",
                host=host,
            )
    refuse_shared((checked.host, checked.request.playbook.parsed_settings) for _, checked in plans_with_files)
    hosts = {plan.host: hosts_named([plan.host], options.fleet_file)[0] for plan in read}
    for plan in read:
        check_reach(hosts[plan.host], plan)
        check_key(plan)
        _say_age(plan, max_age)
    if only_check:
        with stopping(len(read)) as stop:
            contexts = [
                (plan, run_context(hosts[plan.host], options, stop, lambda event: None, file))
                for file, plan in plans_with_files
            ]
            found = run_all(contexts, lambda work: check(*work), at_once=at_once, to_user_error=as_winhost_error)
            shown = [(one.item[0].host, one.error or Checked.of(one.item[0].plan, one.required_value)) for one in found]
            return show_results("check", "json" if options.as_jsonl else options.output.shape, shown, _show_checked)
    given = {checked.host: _asked(checked.plan, file, options) for file, checked in plans_with_files}
    begin(f"Apply {'this plan' if len(read) == 1 else f'these {len(read)} plans'} to {', '.join(hosts)}?", options.yes)
    with under_way(len(read), options.as_jsonl) as (stop, watch):

        def go(named: tuple[Path, CheckedPlan]) -> Outcome:
            file, plan = named
            with watch.at(plan.host, "reading"):
                return run(plan, given[plan.host], run_context(hosts[plan.host], options, stop, watch, file))

        results = run_all(
            plans_with_files, go, at_once=at_once, stop_on_failure=stop_on_failure, to_user_error=as_winhost_error
        )
    ends: list[tuple[str, Outcome | WinhostError]] = []
    for result in results:
        host, end = result.item[1].host, result.error
        if result.failed_item:
            failed = result.failed_item[1].host
            end = WinhostError(
                "NotBegun",
                what=f"{host}: not started, because {failed} failed",
                meaning="Nothing was changed there: --stop-on-failure starts no further host after that.",
                hint=f"Apply its plan again once {failed} is repaired.",
                host=host,
            )
        ends.append((host, end or result.required_value))
    code = show_ends(ends, options)
    return int(Exit.FAILURE) if code == Exit.USAGE and any(_changed(end) for _, end in ends) else code


def _changed(end: Outcome | WinhostError) -> bool:
    """Tell whether something was done on a host. Then the exit code is not 2, which means that nothing was."""
    if isinstance(end, WinhostError):
        return isinstance(end, RunInterrupted) and end.run is not None and end.exit_code != Exit.USAGE
    return end.changed > 0


def _asked(plan: Plan, file: Path, options: RunOptions) -> tuple[str, ...]:
    """Show the plan on a terminal, and ask for every missing consent. Raises ConsentNeeded."""
    if not options.yes and sys.stdin.isatty():
        with shown_on(options.document):
            show_short(plan)
            show_command("Every step:", "winhost", "apply", str(file), "--check")
    return consents(asking_for(plan, plan.stages), options.accepted, options.yes)


def _show_checked(checked: Checked) -> None:
    if checked.steps:
        show_steps(checked.steps, f"{checked.host}: what it would do now")
    count = f"{len(checked.steps)} step{'' if len(checked.steps) == 1 else 's'}"
    say(f"{checked.host}: nothing was changed. The host matches the plan; {count} to do now.")
    if checked.later:
        say(f"  Planned later, from the facts read then: {', '.join(checked.later)}", hang=2)
    show_consents(checked.risks, checked.possible_risks)


def _say_age(plan: Plan, max_age: int | None) -> None:
    """Say on stderr that a plan, or its facts, are more than a day old. Raises UsageError: TooOld."""
    times = []
    for text in filter(None, (plan.made_at, plan.facts_read_at)):
        with suppress(ValueError):
            time = datetime.fromisoformat(text)
            times.append(time if time.tzinfo else time.replace(tzinfo=UTC))
    age = (datetime.now(UTC) - min(times)).total_seconds() if times else None
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


def resume(run_name: str, vm: str | None, gpus: tuple[str, ...], settings: tuple[str, ...], options: RunOptions) -> int:
    amendment: Amendment | None = None

    def ask(record: RunState, context: RunContext, given: tuple[str, ...]) -> tuple[str, ...]:
        nonlocal amendment
        if not (vm or gpus or settings):
            return given
        asked = [("--vm", vm)] if vm else []
        asked += [("--gpu", gpu) for gpu in gpus] + [("--set", setting) for setting in settings]
        words = [word for each in asked for word in each]
        request = requested(request_of(record.plan), vm, gpus, settings)
        for told in FleetKeys(options.fleet_file).check(record.host, given_keys(request)):
            say(f"{record.host}: {told}")
        stage = preview_amended(record.run, request, context)
        for change in request_changes(record.plan.request, request.document):
            changed = f"{change.name}: {' → '.join(format_two(change.old, change.new))}"
            say(f"{record.host}: {changed}. The rest, planned again:")
        show_stage(stage)
        retry = shlex.join(words)
        plan = replace(record.plan, request=request.document)
        asking = asking_for(plan, [stage], run=record.run, changed=True, retry_options=retry)
        amendment = Amendment(request, stage, retry)
        return consents(asking, given, options.yes)

    def go(run: str, given: tuple[str, ...], context: RunContext) -> Any:
        return go_on(run, given, context, amendment)

    outcome = ended_run(go, "Resume", run_name, options, ask)
    return show_ends([(outcome.host, outcome)], options)


def requested(request: PathRequest, vm: str | None, gpus: tuple[str, ...], settings: tuple[str, ...]) -> PathRequest:
    """Replace values of a request. Raises click.UsageError for those of another path, and as an image does."""
    options = _OPTIONS.get(request.path, {})
    if not options and (vm or gpus):
        raise click.UsageError(f"--vm and --gpu do not belong to {request.path}; its settings are chosen with --set")
    named = [*(setting for setting in settings if setting.partition("=")[0] in options)]
    others = tuple(setting for setting in settings if setting not in named)
    if others:
        request = _with_settings(request, read_settings(others))
    return _with_options(request, [*named, *([f"vm={vm}"] if vm else []), *(f"gpu={gpu}" for gpu in gpus)], options)


def _with_settings(request: PathRequest, settings: tuple[str, ...]) -> PathRequest:
    """Replace settings. The pin of an image is dropped with the image."""
    kept = copy.deepcopy(request.playbook.settings)
    for prefix, group, pin in _PINS:
        if any(setting.startswith(prefix) for setting in settings):
            reduce(lambda inner, name: inner.get(name) or {}, group, kept).pop(pin, None)
    request = request.with_playbook(decided(request.playbook.with_settings(kept), settings))
    if disk_images.has_unpinned_image(request):
        from winhost.cli.plan.new_vm_image import with_image  # with all that finds images

        request = with_image(request, lambda doing, done, whole: None)
    return request


def _with_options(
    request: PathRequest, named: list[str], options: Mapping[str, Callable[[str], object]]
) -> PathRequest:
    chosen: dict[str, list[object]] = {}
    for setting in named:
        name, _, value = setting.partition("=")
        if not value.strip():
            raise click.BadParameter(f"{visible(setting)!r} is not NAME=VALUE", param_hint="--set")
        chosen.setdefault(name, []).append(options[name](value))
    values: dict[str, Any] = {name: found[-1] for name, found in chosen.items() if name != "gpu"}
    if "gpu" in chosen:
        values["gpus"] = tuple(chosen["gpu"])
    return request.with_options(**values) if values else request


# Settings that a plan pins by a hash: their prefix, the group that has the pin, and its name there.
_PINS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("new_vm.image.", ("new_vm", "image"), "pinned"),
    ("system.installer=", ("system",), "sha256"),
    ("system.mirror=", ("system",), "sha256"),
)

# Names for --set besides the settings of a path: `plan` has options for them.
_OPTIONS: Mapping[str, Mapping[str, Callable[[str], Any]]] = {
    "dda": {"vm": str, "gpu": str, "high": SIZE, "low": SIZE, "power": click.Choice(get_args(Power))}
}


def rollback(run_name: str, options: RunOptions) -> int:

    def ask(record: RunState, context: RunContext, given: tuple[str, ...]) -> tuple[str, ...]:
        if options.yes or not sys.stdin.isatty():
            return given
        steps, back, _ = preview_on_host(run_name, context)
        show_steps(steps, f"Undo {run_name} on {record.host}")
        for sentence in (
            *back.kept,
            *back.removed_with_parent,
            *(f"{unchecked.title}: cannot be checked: {unchecked.why}" for unchecked in back.missing),
        ):
            say(f"  {sentence}", hang=2)
        vm, changed = record.plan.request.vm, record.going_back
        asking = asking_for_steps(record.host, steps, vm=vm, run=run_name, going_back=True, changed=changed)
        return consents(asking, given, False)

    outcome = ended_run(go_back, "Roll back", run_name, options, ask)
    code = show_ends([(outcome.host, outcome)], options)
    if code or options.yes or options.document or not sys.stdin.isatty():
        return code
    others = replace(options, accepted=())  # an approval for this run does not count for another
    store = Store()
    codes = (
        rollback(other, others)
        for other in waiting_for(run_name, outcome.host, store)
        if click.confirm(f"Look at what the rollback of {other} kept for {run_name}, to undo it now?", err=True)
    )
    return max(codes, default=code)
