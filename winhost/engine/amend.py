"""Replace a request value in the middle of a run, unless a step already used it."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from winhost.core.answers import Json, Key, Record, identity
from winhost.core.dataclass import dataclass
from winhost.engine.events import AmendedValue
from winhost.engine.failures import RunInterrupted
from winhost.engine.run_state import RunState
from winhost.model.documents import plain
from winhost.model.errors import NotOnHost, UsageError, WinhostError, visible
from winhost.model.facts import Facts, with_state
from winhost.model.plan import Plan, PlanRequest, Stage
from winhost.paths.playbook import PathRequest


@dataclass(frozen=True)
class Amendment:
    """Another request for a run in progress. shown: the stage that the user has confirmed, None without a question;
    options: the arguments of `resume` that chose the request.
    """

    request: PathRequest
    shown: Stage | None = None
    options: str = ""


def outdated_preview_error(host: str) -> UsageError:
    """Make the error for a host that changed while the user was reading the preview."""
    return UsageError(
        "NotAsShown",
        what=f"{host} has changed since these steps were shown",
        meaning="The consents were given for other steps than those that are needed now.",
        host=host,
    )


def _nothing_to_amend_error(run: str, reason: str, hint: str) -> UsageError:
    return UsageError("NothingAnew", what=f"{run}: {visible(reason)}", hint=hint)


def retry_options_of(path: str, error: WinhostError) -> str:
    """Return the options of `resume` that replace the value which this error rejects."""
    if path != "dda":
        return "--set NAME=VALUE"
    return "--gpu NAME" if isinstance(error, NotOnHost) and error.kind == "GPU" else "--vm NAME"


def retry_options_for_step(plan: Plan, resource: str) -> str | None:
    """Return the options of `resume` that replace a value which only this step can check; None if there is no such."""
    names = [each.name for each in plan.unchecked if resource in each.resources]
    if not names:
        return None
    return f"--set {names[0]}=VALUE" if len(names) == 1 else "--set NAME=VALUE"


def request_changes(old: PlanRequest, new: PlanRequest) -> tuple[AmendedValue, ...]:
    """Return the differences of two requests, by the names that `--set` takes."""
    before, after = _values_by_option(old), _values_by_option(new)
    return tuple(
        AmendedValue(name, before.get(name), after.get(name))
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    )


def refuse_pointless(record: RunState, request: PathRequest) -> None:
    """Refuse a request that cannot be amended, or that is the present one. Raises UsageError: NothingAnew."""
    if record.unchanged:
        hint = f"Plan again: winhost plan {visible(record.host)}"
        raise _nothing_to_amend_error(record.run, "it has changed nothing, so there is nothing to go on with", hint)
    if record.restart_due or record.in_flight:
        hint = f"Bring that to its end first: winhost resume {record.run}"
        raise _nothing_to_amend_error(record.run, "it was cut off in the middle of a step or a restart", hint)
    if not request_changes(record.plan.request, request.document):
        raise _nothing_to_amend_error(
            record.run, "it is asked for so already", f"Continue: winhost resume {record.run}"
        )


def facts_before_needs(record: RunState, facts: Facts) -> Facts:
    """Return the facts with the needs of other steps undone: a VM that the run has turned off was not off before."""
    for (resource, key), moved in record.moved_needs.items():
        facts = facts.edited(resource, partial(_restore_moved, dict(key), moved))
    return facts


def _restore_moved(key: Key, moved: Mapping[str, tuple[Json, Json]], record: Record) -> Record:
    original = {name: before for name, (before, _) in moved.items()}
    return with_state(record, original) if dict(record.key) == key else record


def refuse_used_values(record: RunState, request: PathRequest, stage: Stage) -> None:
    """Refuse a new request that drops what the run already changed for the old one.

    Raises RunInterrupted: AlreadyUsed.
    """
    old_goals = {identity(w.resource, w.key): w.desired for before in record.stages for w in before.desired}
    new_goals = {identity(w.resource, w.key): w.desired for w in stage.desired}
    replaced = {resource for resource, key in new_goals if (resource, key) not in old_goals}
    used: dict[str, None] = {}
    for id_, touched in record.touched.items():
        if id_ not in old_goals or touched.is_restored:
            continue
        differs = id_ in new_goals and any(
            new_goals[id_].get(name) != old_goals[id_].get(name) for name in touched.changed
        )
        if differs or (id_ not in new_goals and touched.resource in replaced):
            used[touched.title] = None
    if used:
        names, titles = (each.name for each in request_changes(record.plan.request, request.document)), "; ".join(used)
        raise RunInterrupted(
            "AlreadyUsed",
            what=f"{record.host}: {', '.join(map(visible, names))} cannot be chosen again: {titles}: "
            "changed by this run already",
            meaning="To have it otherwise, go back, then plan and apply again.",
            host=record.host,
            run=record.run,
        )


def _values_by_option(request: PlanRequest) -> Mapping[str, Json]:
    document = plain(request)
    settings = document.pop("playbook").get("settings", {})
    gpus = document.pop("gpus")
    values = {name: value for name, value in document.items() if name not in ("path", "allow_unverified")}
    return {**values, "gpu": list(gpus) or None, **dict(_flatten(settings))}


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Json]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
