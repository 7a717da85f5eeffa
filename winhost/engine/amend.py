"""Replace a request value in the middle of a run, unless a step already used it."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from winhost.core.answers import Json, Key, Record, identity
from winhost.core.dataclass import dataclass
from winhost.engine.events import AmendedValue
from winhost.engine.failures import EndOfRun
from winhost.engine.run_state import RunState
from winhost.model.documents import plain
from winhost.model.errors import NotOnHost, UsageError, WinhostError, visible
from winhost.model.facts import Facts, with_state
from winhost.model.plan import Plan, PlanRequest, Stage
from winhost.paths.playbook import PathRequest


@dataclass(frozen=True)
class Amendment:
    """Another request for a run under way. shown: its stage as a person has seen it, None where nobody was asked;
    options: those of `resume` that chose it.
    """

    request: PathRequest
    shown: Stage | None = None
    options: str = ""


def not_as_shown(host: str) -> UsageError:
    """The host changed while somebody was reading what would be done."""
    return UsageError(
        "NotAsShown",
        what=f"{host} has changed since these steps were shown",
        meaning="The consents were given for other steps than those that are needed now.",
        host=host,
    )


def _nothing_to_choose(run: str, why: str, hint: str) -> UsageError:
    return UsageError("NothingAnew", what=f"{run}: {visible(why)}", hint=hint)


def options(path: str, error: WinhostError) -> str:
    """The options of `resume` that replace the value which this error found wrong."""
    if path != "dda":
        return "--set NAME=VALUE"
    return "--gpu NAME" if isinstance(error, NotOnHost) and error.kind == "GPU" else "--vm NAME"


def options_for(plan: Plan, resource: str) -> str | None:
    """The options of `resume` that replace a value which only the host's refusal of this step could prove wrong."""
    names = [each.name for each in plan.unchecked if resource in each.resources]
    if not names:
        return None
    return f"--set {names[0]}=VALUE" if len(names) == 1 else "--set NAME=VALUE"


def changes(old: PlanRequest, new: PlanRequest) -> tuple[AmendedValue, ...]:
    """The differences of two requests, by the names that `--set` takes."""
    before, after = _values(old), _values(new)
    return tuple(
        AmendedValue(name, before.get(name), after.get(name))
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    )


def refuse_pointless(record: RunState, request: PathRequest) -> None:
    """Raises UsageError: NothingAnew."""
    if record.unchanged:
        hint = f"Plan again: winhost plan {visible(record.host)}"
        raise _nothing_to_choose(record.run, "it has changed nothing, so there is nothing to go on with", hint)
    if record.restart_due or record.in_flight:
        hint = f"Bring that to its end first: winhost resume {record.run}"
        raise _nothing_to_choose(record.run, "it was cut off in the middle of a step or a restart", hint)
    if not changes(record.plan.request, request.document):
        raise _nothing_to_choose(record.run, "it is asked for so already", f"Continue: winhost resume {record.run}")


def as_found(record: RunState, facts: Facts) -> Facts:
    """The facts with what the run moved for other steps as it was: a VM that is off for these was not found off."""
    for (resource, key), moved in record.between.items():
        facts = facts.edited(resource, partial(_moved_back, dict(key), moved))
    return facts


def _moved_back(key: Key, moved: Mapping[str, tuple[Json, Json]], record: Record) -> Record:
    found = {name: before for name, (before, _) in moved.items()}
    return with_state(record, found) if dict(record.key) == key else record


def refuse_used(record: RunState, request: PathRequest, stage: Stage) -> None:
    """Refuse a new request that drops what the run already changed for the old one.

    Raises EndOfRun: AlreadyUsed.
    """
    old = {identity(w.resource, w.key): w.desired for before in record.stages for w in before.desired}
    new = {identity(w.resource, w.key): w.desired for w in stage.desired}
    instead = {resource for resource, key in new if (resource, key) not in old}
    used: dict[str, None] = {}
    for id_, touched in record.touched.items():
        if id_ not in old or touched.is_restored:
            continue
        differs = id_ in new and any(new[id_].get(name) != old[id_].get(name) for name in touched.changed)
        if differs or (id_ not in new and touched.resource in instead):
            used[touched.title] = None
    if used:
        names, titles = (each.name for each in changes(record.plan.request, request.document)), "; ".join(used)
        raise EndOfRun(
            "AlreadyUsed",
            what=f"{record.host}: {', '.join(map(visible, names))} cannot be chosen again: {titles}: "
            "changed by this run already",
            meaning="To have it otherwise, go back, then plan and apply again.",
            host=record.host,
            run=record.run,
        )


def _values(request: PlanRequest) -> Mapping[str, Json]:
    document = plain(request)
    settings = document.pop("playbook").get("settings", {})
    gpus = document.pop("gpus")
    options = {name: value for name, value in document.items() if name not in ("path", "allow_unverified")}
    return {**options, "gpu": list(gpus) or None, **dict(_flat(settings))}


def _flat(settings: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Json]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", value
