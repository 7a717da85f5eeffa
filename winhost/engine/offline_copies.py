"""Use copies of images, models and packages on the Linux itself instead of a registry and a hub: see `winhost
fetch`.
"""

from collections.abc import Mapping
from dataclasses import replace

from winhost.core.answers import Json, identity
from winhost.core.steps import DesiredResource, Step
from winhost.model.plan import Offline, Plan


def use_copies(desired: DesiredResource, offline: Offline | None) -> DesiredResource:
    """Return the desired resource with a copy as its source, if there is one. The plan has the hash of the copy."""
    if offline is None:
        return desired
    return replace(
        desired, desired={**desired.desired, **_sources(desired.resource, desired.key, desired.desired, offline)}
    )


def use_copies_in_plan(plan: Plan, offline: Offline) -> Plan:
    """Return the plan for a host without a network. Its later stages use copies too."""
    stages = []
    for stage in plan.stages:
        goals = {identity(each.resource, each.key): each.desired for each in stage.desired}
        desired = tuple(use_copies(each, offline) for each in stage.desired)
        steps = (
            _use_copies_in_step(step, goals.get(identity(step.resource, step.key), {}), offline) for step in stage.steps
        )
        stages.append(replace(stage, desired=desired, steps=tuple(steps)))
    return replace(plan, request=replace(plan.request, offline=offline), stages=tuple(stages))


def _use_copies_in_step(step: Step, goal: Mapping[str, Json], offline: Offline) -> Step:
    """Use copies in a step. goal: the whole desired state of its resource. A step has only properties that differ: a
    source that is not among them has its desired value already, or is null if none was desired.
    """
    sources = _sources(step.resource, step.key, {**goal, **step.desired}, offline)
    if not sources or step.role != "desired":
        return step
    present = {name: None if name in step.desired else goal.get(name) for name in sources}
    before, desired = {**present, **step.before}, {**step.desired, **sources}
    differing = [name for name in desired if desired[name] != before[name]]
    return replace(
        step, before={name: before[name] for name in differing}, desired={name: desired[name] for name in differing}
    )


def _sources(resource: str, key: Mapping[str, str], desired: Mapping[str, Json], offline: Offline) -> dict[str, Json]:
    if resource == "ContainerImage" and desired.get("present") and key.get("image") in offline.images:
        image = offline.images[key["image"]]
        return {"archive": image.archive, "archive_sha256": image.sha256, "credentials": None}
    if resource == "ModelFiles" and (copy := offline.models.get(f"{desired.get('source')}@{desired.get('revision')}")):
        return {"source": copy, "token": None}
    if resource == "PythonVenv" and (copy := offline.models.get(f"{desired.get('source')}@None")):
        return {"source": copy}
    if resource == "ReleaseFile":
        folder, _, name = str(desired.get("source")).rpartition("/")
        copy = offline.models.get(f"{folder}@None")
        return {"source": f"{copy}/{name}"} if copy else {}
    if resource == "AptSource" and (source := offline.sources.get(f"{desired.get('uri')} {desired.get('suite')}")):
        return {"uri": source}
    if resource in ("LinuxFile", "EngineUnit") and isinstance(text := desired.get("text"), str):
        new = text
        for pinned, image in offline.images.items():
            new = new.replace(pinned, image.name)  # loaded from an archive, it has no digest of a registry
        return {"text": new} if new != text else {}
    return {}
