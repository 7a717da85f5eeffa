"""Compute ordered steps from desired and present states. A need of several steps is met once before and restored after
them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from .answers import HostAnswers, Id, identity, refuse_missing
from .conditions import consents_of, irreversible_reason, needs_of
from .rules import RESTART, ResourceRules
from .steps import Change, DesiredResource, Need, Role, Step


class NoInstance(Exception):
    """The host does not have the instance that is to be changed."""

    def __init__(self, desired: DesiredResource) -> None:
        which = ", ".join(f"{name} {value}" for name, value in desired.key.items()) or "that name"
        super().__init__(f"has no {desired.resource} with {which} any more ({desired.title})")


def differences(desired: DesiredResource, host: HostAnswers) -> Change | None:
    """Return the properties of a goal that differ from the host; None if none do. Raises NoInstance, and MissingFact
    for a property that could not be read, because it could not be restored.
    """
    state = host.state_of(desired.resource, desired.key)
    if state is None:
        raise NoInstance(desired)
    differing = [name for name, value in desired.desired.items() if state[name] != value]
    for name in differing:
        refuse_missing(f"{desired.resource}.{name}", state[name])
    if not differing:
        return None
    credential = host.rules[desired.resource].credential
    if credential in desired.desired and credential not in differing:
        differing.append(credential)  # the change of another property may need the secret again
    return Change(desired.key, {n: state[n] for n in differing}, {n: desired.desired[n] for n in differing})


def steps_for(
    desired: Sequence[DesiredResource],
    host: HostAnswers,
    *,
    prefix: str = "",
    role: Role = "desired",
    backwards: bool = False,
    extra_risks: Mapping[Id, tuple[str, ...]] | None = None,
    titles: Mapping[Id, str] | None = None,
) -> tuple[Step, ...]:
    """Return the ordered steps from the host's answers to the desired states, with steps that meet and restore needs.

    backwards: reverse the order of resources, for rollback; extra_risks: consents that the verdict asks for; titles: of
    resources that are only needs. Raises as `differences` does.
    """
    goals = {identity(w.resource, w.key): (w, differences(w, host)) for w in desired}
    needs = _needs((host.rules[w.resource], change) for w, change in goals.values() if change)
    unmet = {}
    for id_, need in needs.items():
        state = host.state_of(need.resource, need.key)
        if state is not None and any(state[name] != value for name, value in need.desired.items()):
            unmet[id_] = need
    steps = [
        _step(host.rules[w.resource], w, change, role, (extra_risks or {}).get(id_, ()))
        for id_, (w, change) in goals.items()
        if change and id_ not in needs
    ]
    direction = -1 if backwards else 1
    steps.sort(key=lambda step: (direction * host.rules[step.resource].order, tuple(step.key.values())))
    for id_, need in unmet.items():
        goal = goals[id_][0] if id_ in goals else None
        title = goal.title if goal else (titles or {}).get(id_, f"{need.resource} of {', '.join(need.key.values())}")
        steps = _insert_need(steps, id_, need, title, goal, host)
    # If a need holds already, the goal of the same resource is reached last.
    for id_ in needs.keys() - unmet.keys():
        if id_ in goals and (change := goals[id_][1]):
            steps.append(_step(host.rules[id_[0]], goals[id_][0], change, role, ()))
    return tuple(replace(step, id=f"{prefix}{number}") for number, step in enumerate(steps, start=1))


def _needs(changes: Iterable[tuple[ResourceRules, Change]]) -> dict[Id, Need]:
    return {
        identity(need.resource, need.key): need
        for resource, change in changes
        for need in needs_of(resource.needs, change)
    }


def _insert_need(
    steps: list[Step], id_: Id, need: Need, title: str, goal: DesiredResource | None, host: HostAnswers
) -> list[Step]:
    """Insert a step that meets the need before the first step with it, and one that restores it after the last one."""
    dependents = [
        number for number, step in enumerate(steps) if id_ in _needs([(host.rules[step.resource], change_of(step))])
    ]
    first, last = dependents[0], dependents[-1]
    rules = host.rules[need.resource]
    state = host.state_of(need.resource, need.key) or {}
    before = {name: state[name] for name in need.desired}
    titles = ", ".join(dict.fromkeys(steps[number].title for number in dependents))
    meeting = DesiredResource(need.resource, need.key, need.desired, title, f"{titles} can change only then.")
    ordered = [
        *steps[:first],
        _step(rules, meeting, Change(need.key, before, need.desired), "need", ()),
        *steps[first : last + 1],
    ]
    final = dict(goal.desired) if goal else before
    if final != dict(need.desired):
        restoring = DesiredResource(need.resource, need.key, final, title, goal.why if goal else "As it was found.")
        ordered.append(_step(rules, restoring, Change(need.key, need.desired, final), "restore", ()))
    return ordered + steps[last + 1 :]


def _step(
    resource: ResourceRules, desired: DesiredResource, change: Change, role: Role, extra: tuple[str, ...]
) -> Step:
    risks = tuple(dict.fromkeys((*consents_of(resource.risks, change), *extra)))
    return Step(
        id="",
        resource=desired.resource,
        key=desired.key,
        role=role,
        before=change.before,
        desired=change.desired,
        title=desired.title,
        why=desired.why,
        risks=risks,
        may_need=tuple(risk for risk in consents_of(resource.may_need, change) if risk not in risks),
        restarts=resource.restarts and RESTART in risks,
        irreversible=irreversible_reason(resource.irreversible, change),
    )


def change_of(step: Step) -> Change:
    return Change(step.key, step.before, step.desired)
