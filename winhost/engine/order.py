"""From what is wanted and what is so, to ordered steps: differences, needs met once and given back, order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter

from winhost.model.errors import WinhostError
from winhost.model.facts import Facts, Json, Key, MissingFact, Unavailable, Unknown
from winhost.model.once import once
from winhost.model.plan import DesiredResource, Role, Step
from winhost.resources.base import Change, Need, ResourceType
from winhost.resources.registry import RESOURCE_TYPES, answer

Id = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(eq=False)
class Gone(WinhostError):
    """What is wanted of something that the host does not have."""

    host: str
    title: str
    noun: str
    key: Key

    @property
    def what(self) -> str:
        where = ", ".join(f"{name} {value}" for name, value in self.key.items())
        return f"{self.host} has no {self.noun} with {where or 'that name'} any more ({self.title})"

    @property
    def hint(self) -> str | None:
        return f"Read it again: winhost plan {self.host}"


def identity(noun: str, key: Key) -> Id:
    """What a resource is called inside the engine: hashable, independent of the key's order."""
    return noun, tuple(sorted(key.items()))


def state_of(facts: Facts, noun: str, key: Key) -> Mapping[str, Json] | None:
    """The state as the host told it, or of what can yet be made; None where there is no such. Raises MissingFact."""
    found = answer(facts, noun)
    if isinstance(found, Unknown | Unavailable):
        raise MissingFact(noun, found)
    return next((record.state for record in found if dict(record.key) == dict(key)), RESOURCE_TYPES[noun].absent)


def differences(wanted: DesiredResource, facts: Facts) -> Change | None:
    """What of a wish is not so. Raises Gone, MissingFact (a property that could not be read cannot be given back)."""
    state = state_of(facts, wanted.noun, wanted.key)
    if state is None:
        raise Gone(facts.host, wanted.title, wanted.noun, wanted.key)
    differing = [name for name, value in wanted.want.items() if state[name] != value]
    for name in differing:
        refuse_missing(f"{wanted.noun}.{name}", state[name])
    if not differing:
        return None
    return Change(wanted.key, {n: state[n] for n in differing}, {n: wanted.want[n] for n in differing})


def steps_for(
    wanted: Sequence[DesiredResource],
    facts: Facts,
    *,
    prefix: str = "",
    role: Role = "wish",
    backwards: bool = False,
    extra_risks: Mapping[Id, tuple[str, ...]] | None = None,
    titles: Mapping[Id, str] | None = None,
) -> tuple[Step, ...]:
    """Ordered steps from the facts to what is wanted, with the needs of all of them met once and put back.

    `backwards` reverses the order of nouns, for rollback. `extra_risks`: consents that the verdict asks for; `titles`:
    of resources that are needed without being wanted.
    """
    found = {identity(w.noun, w.key): (w, differences(w, facts)) for w in wanted}
    needs = _needs((RESOURCE_TYPES[w.noun], change) for w, change in found.values() if change)
    moved = {id_: need for id_, need in needs.items() if _differs(need, facts)}
    steps = [
        _step(w, change, role, (extra_risks or {}).get(id_, ()))
        for id_, (w, change) in found.items()
        if change and id_ not in needs
    ]
    steps.sort(key=lambda step: _rank(step.noun, step.key, backwards))
    for id_, need in moved.items():
        wish = found[id_][0] if id_ in found else None
        title = wish.title if wish else (titles or {}).get(id_, f"{need.noun} of {', '.join(need.key.values())}")
        steps = _surround(steps, id_, need, title, wish, facts)
    # A need that already holds leaves its resource's own wish to be met last, as if nothing needed it.
    for id_ in needs.keys() - moved.keys():
        if id_ in found and (change := found[id_][1]):
            steps.append(_step(found[id_][0], change, role, ()))
    return tuple(replace(step, id=f"{prefix}{number}") for number, step in enumerate(steps, start=1))


def _needs(changes: Iterable[tuple[ResourceType, Change]]) -> dict[Id, Need]:
    return {identity(need.noun, need.key): need for noun, change in changes for need in noun.needs(change)}


def _differs(need: Need, facts: Facts) -> bool:
    state = state_of(facts, need.noun, need.key)
    return state is not None and any(state[name] != value for name, value in need.want.items())


def _surround(
    steps: list[Step], id_: Id, need: Need, title: str, wish: DesiredResource | None, facts: Facts
) -> list[Step]:
    """Put the need before the first step that has it, and its give-back after the last one."""
    having = [
        number for number, step in enumerate(steps) if id_ in _needs([(RESOURCE_TYPES[step.noun], _change(step))])
    ]
    first, last = having[0], having[-1]
    state = state_of(facts, need.noun, need.key) or {}
    before = {name: state[name] for name in need.want}
    meet = DesiredResource(need.noun, need.key, need.want, title, f"{_titles(steps, having)} can change only then.")
    done = [*steps[:first], _step(meet, Change(need.key, before, need.want), "need", ()), *steps[first : last + 1]]
    back = dict(wish.want) if wish else before
    if back != dict(need.want):
        again = DesiredResource(need.noun, need.key, back, title, wish.why if wish else "As it was found.")
        done.append(_step(again, Change(need.key, need.want, back), "give-back", ()))
    return done + steps[last + 1 :]


def _titles(steps: Sequence[Step], numbers: Sequence[int]) -> str:
    return ", ".join(dict.fromkeys(steps[number].title for number in numbers))


def _step(wanted: DesiredResource, change: Change, role: Role, extra: tuple[str, ...]) -> Step:
    noun = RESOURCE_TYPES[wanted.noun]
    risks = tuple(dict.fromkeys((*noun.risks(change), *extra)))
    return Step(
        id="",
        noun=wanted.noun,
        key=wanted.key,
        role=role,
        before=change.before,
        want=change.want,
        title=wanted.title,
        why=wanted.why,
        risks=risks,
        may_need=tuple(risk for risk in noun.may_need(change) if risk not in risks),
        restarts=noun.restarts,
        irreversible=noun.irreversible(change),
    )


def _change(step: Step) -> Change:
    return Change(step.key, step.before, step.want)


@once
def _noun_order() -> dict[str, int]:
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for noun in RESOURCE_TYPES.values():
        sorter.add(noun.name, *noun.after, *filter(None, [noun.requires]))
    return {name: number for number, name in enumerate(sorter.static_order())}


def _rank(noun: str, key: Key, backwards: bool) -> tuple[int, tuple[str, ...]]:
    place = _noun_order()[noun]
    return (-place if backwards else place), tuple(key.values())


def refuse_missing(fact: str, value: Json, *, unavailable: bool = True) -> None:
    """Raises MissingFact where the host could not tell a property; if not asked otherwise, also before it can be."""
    if isinstance(value, Mapping) and len(value) == 1:
        if "unknown" in value:
            from winhost.connect.agent import fault

            raise MissingFact(fact, Unknown(fault(value["unknown"])))
        if unavailable and "unavailable" in value:
            raise MissingFact(fact, Unavailable(value["unavailable"]))
