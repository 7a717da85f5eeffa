"""winhost resume: go on after a crash, a stop or a missing consent, if need be with another value of the request."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from winhost.cli.options import Size
from winhost.cli.output import say
from winhost.cli.outputs import Output
from winhost.cli.plan_options import decided
from winhost.cli.running import Deadlines, asking_for, consents, resume_or_roll_back
from winhost.cli.show_plan import show_stage
from winhost.cli.values import format_value
from winhost.engine.amending import Amendment, changes
from winhost.engine.planning import request_of
from winhost.engine.run import preview_amended
from winhost.engine.run import resume as go_on
from winhost.engine.run_context import RunContext
from winhost.engine.run_state import RunState
from winhost.model.errors import visible
from winhost.paths.path_request import PathRequest


def resume(
    run_name: str,
    vm: str | None,
    cards: tuple[str, ...],
    settings: tuple[str, ...],
    accepted: tuple[str, ...],
    yes: bool,
    guest_deadline: float,
    restart_deadline: float,
    fleet_file: Path | None,
    output: Output,
    as_jsonl: bool,
) -> int:
    """Continue a RUN that was interrupted."""
    amendment: Amendment | None = None

    def ask(record: RunState, context: RunContext, given: tuple[str, ...]) -> tuple[str, ...]:
        nonlocal amendment
        if not (vm or cards or settings):
            return given
        words = [*(("--vm", vm) if vm else ()), *_repeated("--card", cards), *_repeated("--set", settings)]
        request = _requested(request_of(record.plan), vm, cards, settings)
        amendment, given = _planned_again(record, request, shlex.join(words), context, given, yes)
        return given

    def go(run: str, given: tuple[str, ...], context: RunContext) -> Any:
        return go_on(run, given, context, amendment)

    deadlines = Deadlines(guest_deadline, restart_deadline)
    return resume_or_roll_back(go, "Resume", run_name, accepted, yes, deadlines, fleet_file, output, as_jsonl, ask)


def _planned_again(
    record: RunState, request: PathRequest, words: str, context: RunContext, given: tuple[str, ...], yes: bool
) -> tuple[Amendment, tuple[str, ...]]:
    """Plan the rest again, show it, and ask for its consents. Raises as `preview_amended` does, and ConsentNeeded."""
    stage = preview_amended(record.run, request, context)
    for change in changes(record.plan.request, request.document):
        changed = f"{change.name}: {format_value(change.old)} → {format_value(change.new)}"
        say(f"{record.host}: {changed}. The rest, planned again:")
    show_stage(stage)
    asking = asking_for(
        replace(record.plan, request=request.document), [stage], run=record.run, changed=True, retry_options=words
    )
    return Amendment(request, stage, words), consents(asking, given, yes)


def _repeated(option: str, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for value in values for word in (option, value))


def _requested(request: PathRequest, vm: str | None, cards: tuple[str, ...], settings: tuple[str, ...]) -> PathRequest:
    """The request with other values. Raises click.UsageError for what the path does not have."""
    if request.path in _OPTIONS:
        named = [*settings, *([f"vm={vm}"] if vm else []), *(f"card={card}" for card in cards)]
        return _with_options(request, named, _OPTIONS[request.path])
    if vm or cards:
        raise click.UsageError(f"--vm and --card do not belong to {request.path}; its settings are chosen with --set")
    return request.with_playbook(decided(request.playbook, settings))


def _with_options(
    request: PathRequest, named: list[str], options: Mapping[str, Callable[[str], object]]
) -> PathRequest:
    chosen: dict[str, list[object]] = {}
    for setting in named:
        name, equals, value = setting.partition("=")
        if not (equals and value.strip()) or name not in options:
            raise click.BadParameter(
                f"{visible(setting)!r} is not NAME=VALUE with one of the names {', '.join(options)}", param_hint="--set"
            )
        chosen.setdefault(name, []).append(options[name](value))
    values: dict[str, Any] = {name: found[-1] for name, found in chosen.items() if name != "card"}
    if "card" in chosen:
        values["cards"] = tuple(chosen["card"])
    return request.with_options(**values)


def _size(value: str) -> object:
    return Size().convert(value, None, None)


def _power(value: str) -> object:
    return click.Choice(["as-found", "running", "off"]).convert(value, None, None)


# What --set names of a path whose playbook has no settings, as the options of `plan` do.
_OPTIONS: Mapping[str, Mapping[str, Callable[[str], object]]] = {
    "dda": {"vm": str, "card": str, "high": _size, "low": _size, "power": _power}
}
