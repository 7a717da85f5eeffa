"""winhost resume and winhost rollback: continue an interrupted run, or undo one."""

import copy
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any, get_args

import click

from winhost.cli.commands.plan import Power
from winhost.cli.options import SIZE, RunOptions
from winhost.cli.output import say
from winhost.cli.plan_options import FleetKeys, decided, given_keys, read_settings
from winhost.cli.running import asking_for, asking_for_steps, consents, ended_run, show_ends
from winhost.cli.show_plan import show_stage, show_steps
from winhost.cli.tables import format_two
from winhost.engine import disk_images
from winhost.engine.amending import Amendment, changes
from winhost.engine.planning import request_of
from winhost.engine.rollback import look, waiting_for
from winhost.engine.rollback import rollback as go_back
from winhost.engine.run import preview_amended
from winhost.engine.run import resume as go_on
from winhost.engine.run_context import RunContext
from winhost.engine.run_state import RunState
from winhost.engine.store import Store
from winhost.model.errors import visible
from winhost.paths.playbook import PathRequest


def resume(
    run_name: str,
    vm: str | None,
    gpus: tuple[str, ...],
    settings: tuple[str, ...],
    options: RunOptions,
) -> int:
    amendment: Amendment | None = None

    def ask(record: RunState, context: RunContext, given: tuple[str, ...]) -> tuple[str, ...]:
        nonlocal amendment
        if not (vm or gpus or settings):
            return given
        words = [*(("--vm", vm) if vm else ()), *_repeated("--gpu", gpus), *_repeated("--set", settings)]
        request = requested(request_of(record.plan), vm, gpus, settings)
        for told in FleetKeys(options.fleet_file).check(record.host, given_keys(request)):
            say(f"{record.host}: {told}")
        amendment, given = _planned_again(record, request, shlex.join(words), context, given, options.yes)
        return given

    def go(run: str, given: tuple[str, ...], context: RunContext) -> Any:
        return go_on(run, given, context, amendment)

    outcome = ended_run(go, "Resume", run_name, options, ask)
    return show_ends([(outcome.host, outcome)], options)


def _planned_again(
    record: RunState, request: PathRequest, words: str, context: RunContext, given: tuple[str, ...], yes: bool
) -> tuple[Amendment, tuple[str, ...]]:
    """Plan the rest again, show it, and ask for its consents. Raises as `preview_amended` does, and ConsentNeeded."""
    stage = preview_amended(record.run, request, context)
    for change in changes(record.plan.request, request.document):
        changed = f"{change.name}: {' → '.join(format_two(change.old, change.new))}"
        say(f"{record.host}: {changed}. The rest, planned again:")
    show_stage(stage)
    asking = asking_for(
        replace(record.plan, request=request.document), [stage], run=record.run, changed=True, retry_options=words
    )
    return Amendment(request, stage, words), consents(asking, given, yes)


def _repeated(option: str, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for value in values for word in (option, value))


def requested(request: PathRequest, vm: str | None, gpus: tuple[str, ...], settings: tuple[str, ...]) -> PathRequest:
    """Replace values of a request. Raises click.UsageError for a value that the path does not have, and as an image
    does.
    """
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
    for begin, group, pin in _PINS:
        if any(setting.startswith(begin) for setting in settings):
            reduce(lambda inner, name: inner.get(name) or {}, group, kept).pop(pin, None)
    request = request.with_playbook(decided(request.playbook.with_settings(kept), settings))
    if disk_images.is_open(request):
        from winhost.cli.new_vm_image import with_image  # with all that finds images

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
        values["cards"] = tuple(chosen["gpu"])
    return request.with_options(**values) if values else request


def _size(value: str) -> object:
    return SIZE.convert(value, None, None)


def _power(value: str) -> object:
    return click.Choice(get_args(Power)).convert(value, None, None)


# Settings of which one was pinned by a hash: how they begin, the group that has the pin, and its name there.
_PINS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("new_vm.image.", ("new_vm", "image"), "pinned"),
    ("system.installer=", ("system",), "sha256"),
    ("system.mirror=", ("system",), "sha256"),
)

# What --set names besides the settings of a path: what `plan` has options for.
_OPTIONS: Mapping[str, Mapping[str, Callable[[str], object]]] = {
    "dda": {"vm": str, "gpu": str, "high": _size, "low": _size, "power": _power}
}


def rollback(run_name: str, options: RunOptions) -> int:

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

    outcome = ended_run(go_back, "Roll back", run_name, options, ask)
    code = show_ends([(outcome.host, outcome)], options)
    if code or options.yes or options.document or not sys.stdin.isatty():
        return code
    others = replace(options, accepted=())  # those for this run are not for another one
    store = Store()
    codes = (
        rollback(other, others)
        for other in waiting_for(run_name, outcome.host, store)
        if click.confirm(f"Look at what the rollback of {other} kept for {run_name}, to undo it now?", err=True)
    )
    return max(codes, default=code)
