"""What is wanted, taken from copies on the Linux itself instead of from a registry and a hub: see `winhost fetch`."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from winhost.core.answers import Json
from winhost.core.steps import DesiredResource, Step
from winhost.model.plan import Offline, Plan, Stage


def from_copies(wanted: DesiredResource, offline: Offline | None) -> DesiredResource:
    """The same with the copy as its source, where there is one. A copy is known by the hash that the plan has."""
    if offline is None:
        return wanted
    return replace(wanted, desired={**wanted.desired, **_sources(wanted.resource, wanted.key, wanted.desired, offline)})


def plan_from_copies(plan: Plan, offline: Offline) -> Plan:
    """The same plan for a host without a network: also what is planned later comes from copies."""
    request = replace(plan.request, offline=offline)
    return replace(plan, request=request, stages=tuple(_stage(stage, offline) for stage in plan.stages))


def _stage(stage: Stage, offline: Offline) -> Stage:
    desired = tuple(from_copies(each, offline) for each in stage.desired)
    return replace(stage, desired=desired, steps=tuple(_step(step, offline) for step in stage.steps))


def _step(step: Step, offline: Offline) -> Step:
    """A step holds what differs: a source that winhost was never asked for was null before."""
    sources = _sources(step.resource, step.key, step.desired, offline)
    if not sources or step.role != "desired":
        return step
    before = {**dict.fromkeys(sources), **step.before}
    desired = {**step.desired, **sources}
    differing = [name for name in desired if desired[name] != before[name]]
    return replace(
        step, before={name: before[name] for name in differing}, desired={name: desired[name] for name in differing}
    )


def _sources(resource: str, key: Mapping[str, str], desired: Mapping[str, Json], offline: Offline) -> dict[str, Json]:
    if resource == "ContainerImage" and desired.get("present") and key.get("image") in offline.images:
        image = offline.images[key["image"]]
        return {"archive": image.archive, "archive_sha256": image.sha256, "credentials": None}
    if resource == "ModelFiles" and f"{desired.get('source')}@{desired.get('revision')}" in offline.models:
        return {"source": offline.models[f"{desired['source']}@{desired['revision']}"], "token": None}
    if resource in ("LinuxFile", "EngineUnit") and isinstance(desired.get("text"), str):
        return dict(_renamed(desired["text"], offline))
    return {}


def _renamed(text: str, offline: Offline) -> Iterator[tuple[str, Json]]:
    """What was loaded from an archive has no digest of a registry: whatever starts it knows it by its name."""
    new = text
    for pinned, image in offline.images.items():
        new = new.replace(pinned, image.name)
    if new != text:
        yield "text", new
