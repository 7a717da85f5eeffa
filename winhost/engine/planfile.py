"""Read plan files, which may have been edited, and check every field."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.version import InvalidVersion, Version
from pydantic import ValidationError

from winhost.core.answers import Json
from winhost.core.steps import Step
from winhost.engine.planning import CheckedPlan, check_plan
from winhost.model.documents import read_document
from winhost.model.plan import RISKS, Plan
from winhost.model.secrets import SecretRef
from winhost.model.yamlfile import Loc, Mistake, refuse_mistakes
from winhost.resources.base import ResourceType
from winhost.resources.factsfile import origin_mistakes
from winhost.resources.registry import RESOURCE_TYPES
from winhost.resources.shape import property_validator
from winhost.resources.shared import READING


def read_plan(path: Path) -> CheckedPlan:
    """Read a plan from a file. Raises UsageError: WrongDocument, FileFaults, and NotAPlan for impossible values."""
    plan = read_document(path, Plan)
    refuse_mistakes(path, plan_mistakes(plan))
    return check_plan(plan)


def plan_mistakes(plan: Plan) -> Iterator[Mistake]:
    """Find faults of single fields, each with its position. `check_plan` finds those of several fields together."""
    yield from origin_mistakes(plan.host, plan.origin, plan.facts_read_at, "facts_read_at")
    if not plan.machine_id:
        yield ("machine_id",), "is empty"
    try:
        Version(plan.winhost)
    except InvalidVersion:
        yield ("winhost",), "should be a version"
    for name in ("low", "high"):
        if (size := getattr(plan.request, name)) is not None and size <= 0:
            yield ("request", name), "should be a size in bytes above none"
    if plan.request.asks_with is not None:
        try:
            SecretRef.parse(plan.request.asks_with)
        except ValueError as wrong:
            yield ("request", "asks_with"), str(wrong)
    yield from _stage_mistakes(plan)


def _stage_mistakes(plan: Plan) -> Iterator[Mistake]:
    ids = Counter(step.id for step in plan.steps)
    for number, stage in enumerate(plan.stages):
        here: Loc = ("stages", number)
        if stage.number != number + 1:
            yield (*here, "number"), f"should be {number + 1}"
        for at, step in enumerate(stage.steps):
            if ids[step.id] > 1 or not step.id:
                yield (*here, "steps", at, "id"), "should be there, and in no other step"
            yield from step_mistakes((*here, "steps", at), step)
        for at, deferred in enumerate(stage.deferred):
            yield from _unknown_risks((*here, "deferred", at, "asks"), deferred.asks)
            for name, value in (("resource", deferred.resource), ("until", deferred.until)):
                if value not in RESOURCE_TYPES and (name, value) != ("until", READING):
                    yield (*here, "deferred", at, name), "is no resource of this winhost"


def step_mistakes(here: Loc, step: Step) -> Iterator[Mistake]:
    """Find faults of a step. here: its position in the document."""
    yield from _unknown_risks((*here, "risks"), step.risks)
    yield from _unknown_risks((*here, "may_need"), step.may_need)
    if set(step.before) != set(step.desired):
        yield (*here, "before"), f"should have the properties of desired: {', '.join(step.desired)}"
    resource = RESOURCE_TYPES.get(step.resource)
    for part, state in (("before", step.before), ("desired", step.desired)):
        for name, value in state.items():
            if resource and name in resource.sets and (wrong := _wrong_value(resource, name, value)):
                yield (*here, part, name), wrong


def _unknown_risks(here: Loc, risks: Iterable[str]) -> Iterator[Mistake]:
    for at, risk in enumerate(risks):
        if risk not in RISKS:
            yield (*here, at), f"is no consent; there are: {', '.join(RISKS)}"


def _wrong_value(resource: ResourceType, name: str, value: Json) -> str | None:
    """Say what is wrong with the value of a property, or None. A value before a step need not be one that can
    be set.
    """
    try:
        property_validator(resource.name, name).validate_python(value)
    except ValidationError as error:
        return str(error.errors(include_url=False)[0]["msg"])
    return None
