"""Turn desired and present states into ordered steps: differences, needs that are met once and restored, order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from .answers import HostAnswers, Id, identity, refuse_missing
from .conditions import consents_of, lasting, needs_of
from .rules import RESTART, ResourceRules
from .steps import Change, DesiredResource, Need, Role, Step


class NoInstance(Exception):
    """The host does not have what something is wanted of."""

    def __init__(self, desired: DesiredResource) -> None:
        which = ", ".join(f"{name} {value}" for name, value in desired.key.items()) or "that name"
        super().__init__(f"has no {desired.resource} with {which} any more ({desired.title})")


def differences(desired: DesiredResource, host: HostAnswers) -> Change | None:
    """The properties of a goal that differ. Raises NoInstance, MissingFact (a property that could not be read cannot be
    restored).
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
        differing.append(credential)  # whatever is changed with it may need the secret again
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
    """Ordered steps from the facts to what is wanted, with the needs of all of them met once and put back.

    `backwards` reverses the order of resources, for rollback. `extra_risks`: consents that the verdict asks for;
    `titles`: of resources that are needed without being wanted. Raises as `differences` does.
    """
    found = {identity(w.resource, w.key): (w, differences(w, host)) for w in desired}
    needs = _needs((host.rules[w.resource], change) for w, change in found.values() if change)
    moved = {}
    for id_, need in needs.items():
        state = host.state_of(need.resource, need.key)
        if state is not None and any(state[name] != value for name, value in need.desired.items()):
            moved[id_] = need
    steps = [
        _step(host.rules[w.resource], w, change, role, (extra_risks or {}).get(id_, ()))
        for id_, (w, change) in found.items()
        if change and id_ not in needs
    ]
    turn = -1 if backwards else 1
    steps.sort(key=lambda step: (turn * host.rules[step.resource].order, tuple(step.key.values())))
    for id_, need in moved.items():
        goal = found[id_][0] if id_ in found else None
        title = goal.title if goal else (titles or {}).get(id_, f"{need.resource} of {', '.join(need.key.values())}")
        steps = _surround(steps, id_, need, title, goal, host)
    # A need that already holds leaves its resource's own goal to be met last, as if nothing needed it.
    for id_ in needs.keys() - moved.keys():
        if id_ in found and (change := found[id_][1]):
            steps.append(_step(host.rules[id_[0]], found[id_][0], change, role, ()))
    return tuple(replace(step, id=f"{prefix}{number}") for number, step in enumerate(steps, start=1))


def _needs(changes: Iterable[tuple[ResourceRules, Change]]) -> dict[Id, Need]:
    return {
        identity(need.resource, need.key): need
        for resource, change in changes
        for need in needs_of(resource.needs, change)
    }


def _surround(
    steps: list[Step], id_: Id, need: Need, title: str, goal: DesiredResource | None, host: HostAnswers
) -> list[Step]:
    """Put the need before the first step that has it, and its give-back after the last one."""
    having = [
        number for number, step in enumerate(steps) if id_ in _needs([(host.rules[step.resource], change_of(step))])
    ]
    first, last = having[0], having[-1]
    rules = host.rules[need.resource]
    state = host.state_of(need.resource, need.key) or {}
    before = {name: state[name] for name in need.desired}
    titles = ", ".join(dict.fromkeys(steps[number].title for number in having))
    meet = DesiredResource(need.resource, need.key, need.desired, title, f"{titles} can change only then.")
    done = [
        *steps[:first],
        _step(rules, meet, Change(need.key, before, need.desired), "need", ()),
        *steps[first : last + 1],
    ]
    back = dict(goal.desired) if goal else before
    if back != dict(need.desired):
        again = DesiredResource(need.resource, need.key, back, title, goal.why if goal else "As it was found.")
        done.append(_step(rules, again, Change(need.key, need.desired, back), "restore", ()))
    return done + steps[last + 1 :]


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
        irreversible=lasting(resource.irreversible, change),
    )


def change_of(step: Step) -> Change:
    return Change(step.key, step.before, step.desired)
