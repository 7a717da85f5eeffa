"""From what is wanted and what is so, to ordered steps: differences, needs met once and given back, order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from winhost.core.answers import Id, Json, Key, MissingFact, Unavailable, Unknown, identity, refuse_missing
from winhost.core.requirements import consents_of, needs_of
from winhost.core.steps import Change, DesiredResource, Need, Role, Step
from winhost.model.errors import WinhostError
from winhost.model.facts import Facts
from winhost.resources.base import ResourceType
from winhost.resources.registry import RESOURCE_TYPES, RULES, answer


class ResourceMissing(WinhostError):
    """The host does not have the resource that something is wanted of."""

    def __init__(self, host: str, desired: DesiredResource) -> None:
        which = ", ".join(f"{name} {value}" for name, value in desired.key.items()) or "that name"
        super().__init__(
            "Gone",
            what=f"{host} has no {desired.resource} with {which} any more ({desired.title})",
            hint=f"Read it again: winhost plan {host}",
            host=host,
        )


def state_of(facts: Facts, resource: str, key: Key) -> Mapping[str, Json] | None:
    """The state as the host told it, or of what can yet be made; None where there is no such. Raises MissingFact."""
    found = answer(facts, resource)
    if isinstance(found, Unknown | Unavailable):
        raise MissingFact(resource, found)
    return next((record.state for record in found if dict(record.key) == dict(key)), RESOURCE_TYPES[resource].absent)


def differences(desired: DesiredResource, facts: Facts) -> Change | None:
    """What of a goal is not so. Raises ResourceMissing, MissingFact (a property that
    could not be read cannot be given back).
    """
    state = state_of(facts, desired.resource, desired.key)
    if state is None:
        raise ResourceMissing(facts.host, desired)
    differing = [name for name, value in desired.desired.items() if state[name] != value]
    for name in differing:
        refuse_missing(f"{desired.resource}.{name}", state[name])
    if not differing:
        return None
    return Change(desired.key, {n: state[n] for n in differing}, {n: desired.desired[n] for n in differing})


def steps_for(
    desired: Sequence[DesiredResource],
    facts: Facts,
    *,
    prefix: str = "",
    role: Role = "desired",
    backwards: bool = False,
    extra_risks: Mapping[Id, tuple[str, ...]] | None = None,
    titles: Mapping[Id, str] | None = None,
) -> tuple[Step, ...]:
    """Ordered steps from the facts to what is wanted, with the needs of all of them met once and put back.

    `backwards` reverses the order of resources, for rollback. `extra_risks`: consents that the verdict asks for;
    `titles`: of resources that are needed without being wanted.
    """
    found = {identity(w.resource, w.key): (w, differences(w, facts)) for w in desired}
    needs = _needs((RESOURCE_TYPES[w.resource], change) for w, change in found.values() if change)
    moved = {id_: need for id_, need in needs.items() if _differs(need, facts)}
    steps = [
        _step(w, change, role, (extra_risks or {}).get(id_, ()))
        for id_, (w, change) in found.items()
        if change and id_ not in needs
    ]
    steps.sort(key=lambda step: _rank(step.resource, step.key, backwards))
    for id_, need in moved.items():
        goal = found[id_][0] if id_ in found else None
        title = goal.title if goal else (titles or {}).get(id_, f"{need.resource} of {', '.join(need.key.values())}")
        steps = _surround(steps, id_, need, title, goal, facts)
    # A need that already holds leaves its resource's own goal to be met last, as if nothing needed it.
    for id_ in needs.keys() - moved.keys():
        if id_ in found and (change := found[id_][1]):
            steps.append(_step(found[id_][0], change, role, ()))
    return tuple(replace(step, id=f"{prefix}{number}") for number, step in enumerate(steps, start=1))


def _needs(changes: Iterable[tuple[ResourceType, Change]]) -> dict[Id, Need]:
    return {
        identity(need.resource, need.key): need
        for resource, change in changes
        for need in needs_of(resource.needs, change)
    }


def _differs(need: Need, facts: Facts) -> bool:
    state = state_of(facts, need.resource, need.key)
    return state is not None and any(state[name] != value for name, value in need.desired.items())


def _surround(
    steps: list[Step], id_: Id, need: Need, title: str, goal: DesiredResource | None, facts: Facts
) -> list[Step]:
    """Put the need before the first step that has it, and its give-back after the last one."""
    having = [
        number for number, step in enumerate(steps) if id_ in _needs([(RESOURCE_TYPES[step.resource], _change(step))])
    ]
    first, last = having[0], having[-1]
    state = state_of(facts, need.resource, need.key) or {}
    before = {name: state[name] for name in need.desired}
    meet = DesiredResource(
        need.resource, need.key, need.desired, title, f"{_titles(steps, having)} can change only then."
    )
    done = [*steps[:first], _step(meet, Change(need.key, before, need.desired), "need", ()), *steps[first : last + 1]]
    back = dict(goal.desired) if goal else before
    if back != dict(need.desired):
        again = DesiredResource(need.resource, need.key, back, title, goal.why if goal else "As it was found.")
        done.append(_step(again, Change(need.key, need.desired, back), "restore", ()))
    return done + steps[last + 1 :]


def _titles(steps: Sequence[Step], numbers: Sequence[int]) -> str:
    return ", ".join(dict.fromkeys(steps[number].title for number in numbers))


def _step(desired: DesiredResource, change: Change, role: Role, extra: tuple[str, ...]) -> Step:
    resource = RESOURCE_TYPES[desired.resource]
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
        restarts=resource.restarts,
        irreversible=resource.irreversible(change),
    )


def _change(step: Step) -> Change:
    return Change(step.key, step.before, step.desired)


def _rank(resource: str, key: Key, backwards: bool) -> tuple[int, tuple[str, ...]]:
    place = RULES[resource].place
    return (-place if backwards else place), tuple(key.values())
