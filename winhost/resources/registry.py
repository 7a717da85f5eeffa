"""Every resource that winhost knows: those of Windows, and those of Linux, in its WSL or on a machine of its own."""

from collections.abc import Mapping
from dataclasses import replace
from graphlib import TopologicalSorter
from importlib import import_module
from importlib.resources import files
from types import ModuleType

from winhost.core.answers import MissingFact, Unavailable
from winhost.core.host_answers import HostAnswers
from winhost.core.rules import ResourceRules, Rests, restarted_by_its_vm
from winhost.model.facts import Answer, Facts
from winhost.resources.base import ResourceType, State
from winhost.resources.shared import ACCESS, BESIDE, RUNNING, SEED, WITHIN_PARTITION, WITHIN_VM


def discover(system: str) -> tuple[type[State], ...]:
    """The states of `windows` or `linux`: of each folder there that has a `resource.py`, in the order of reading.

    Who and what the host is comes first, so that a refusal there explains the rest.
    """
    folders = (entry for entry in files(__package__).joinpath(system).iterdir() if (entry / "resource.py").is_file())
    found = [_declared(import_module(f"{__package__}.{system}.{folder.name}.resource")) for folder in folders]
    return tuple(sorted(found, key=lambda state: (state.resource_type.order, state.resource_type.name)))


def _declared(module: ModuleType) -> type[State]:
    """The one state that a module declares; what it imports is another's."""
    own = (each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__)
    (state,) = (each for each in own if issubclass(each, State))
    return state


WINDOWS_STATES = discover("windows")
LINUX_STATES = discover("linux")
WINDOWS: dict[str, ResourceType] = {state.resource_type.name: state.resource_type for state in WINDOWS_STATES}
LINUX: dict[str, ResourceType] = {state.resource_type.name: state.resource_type for state in LINUX_STATES}
RESOURCE_TYPES: dict[str, ResourceType] = {**WINDOWS, **LINUX}
SYSTEMS: Mapping[str, tuple[str, ...]] = {"windows": tuple(WINDOWS), "linux": tuple(LINUX)}


def _rules(resource: ResourceType, place: int) -> ResourceRules:
    """Its declaration without what only the controller needs."""
    return ResourceRules(
        name=resource.name,
        title=resource.title,
        key=resource.key,
        place=place,
        sets=tuple(resource.sets),
        requires=resource.requires or "",
        restarts=resource.restarts,
        absent=resource.absent,
        needs=resource.needs,
        risks=resource.risks,
        may_need=resource.may_need,
        rests=resource.rests,
        within=_within(resource),
        credential=resource.credential,
        known_as=resource.known_as,
        undo=resource.undo,
    )


def _within(resource: ResourceType) -> tuple[Rests, ...]:
    """What is in a distro of WSL may be in a VM of winhost's own as well, or in a partition that it made."""
    if resource.within is None:
        return ()
    return (WITHIN_VM, WITHIN_PARTITION, resource.within) if resource.name in LINUX else (resource.within,)


def _in_order_of_changes() -> list[str]:
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for resource in RESOURCE_TYPES.values():
        sorter.add(resource.name, *resource.after, *filter(None, [resource.requires]))
    return list(sorter.static_order())


RULES: dict[str, ResourceRules] = {
    name: _rules(RESOURCE_TYPES[name], place) for place, name in enumerate(_in_order_of_changes())
}


# On a machine of its own nothing of Linux waits for Windows, or goes with a distro.
RULES_OF_LINUX: dict[str, ResourceRules] = {
    name: replace(rules, requires="", within=()) if name in LINUX else rules for name, rules in RULES.items()
}


# A restart of a guest is never one of the host.
RULES_WITH_GUEST: dict[str, ResourceRules] = {
    name: restarted_by_its_vm(rules) if name in LINUX else rules for name, rules in RULES.items()
}


# The Linux beside Windows restarts the host when it restarts, and is there only while Windows is not.
RULES_BESIDE_WINDOWS: dict[str, ResourceRules] = {
    name: replace(rules, requires=RUNNING) if name in LINUX else rules for name, rules in RULES.items()
}


def is_beside_windows(facts: Facts) -> bool:
    """Whether a Linux takes turns with this Windows, or is being installed for that."""
    made = facts.resources.get(BESIDE)
    return isinstance(made, tuple) and any(each.state.get("made") is not False for each in made)


def _has_guest(facts: Facts) -> bool:
    """Whether winhost made a VM there and set up its Linux."""
    seeds = facts.resources.get(SEED)
    return isinstance(seeds, tuple) and bool(seeds)


def _no_linux(facts: Facts) -> dict[str, Answer]:
    """Before anybody is let in: of the guest, where one is to come up, or of what runs later, else of the distro."""
    until = RUNNING if is_beside_windows(facts) else SEED if _has_guest(facts) else ACCESS
    return dict.fromkeys(LINUX, Unavailable(until))


def is_linux(facts: Facts) -> bool:
    """Whether the host is a Linux of its own: then its facts hold nothing of Windows, not even why not."""
    return not facts.resources.keys().isdisjoint(LINUX) and facts.resources.keys().isdisjoint(WINDOWS)


def answer(facts: Facts, resource: str) -> Answer:
    """What facts tell of a resource."""
    return host_answers(facts).answer(resource)


def host_answers(facts: Facts) -> HostAnswers:
    """A host whose Linux lets nobody in has nothing to tell of it, and its facts lack it."""
    if is_linux(facts):
        return HostAnswers(facts.resources, RULES_OF_LINUX)
    beside = RULES_BESIDE_WINDOWS if is_beside_windows(facts) else RULES
    return HostAnswers({**_no_linux(facts), **facts.resources}, RULES_WITH_GUEST if _has_guest(facts) else beside)


def titled(resource: str) -> str:
    """What sentences for people call it. A journal or facts may name one that nobody knows: that by its name."""
    return RESOURCE_TYPES[resource].title if resource in RESOURCE_TYPES else resource


def label(resource: str) -> str:
    """The part of its key that people know it by; nothing where a host has it once."""
    parts = RESOURCE_TYPES[resource].key
    return "distro" if "distro" in parts else next(iter(parts), "")


def unread(missing: MissingFact) -> str:
    """A sentence for people about what was not read."""
    resource, _, name = missing.fact.partition(".")
    what = f"{titled(resource)} ({name})" if name else titled(resource)
    if isinstance(missing.missing, Unavailable):
        return f"{what} cannot be read before {titled(missing.missing.unavailable)} is there"
    return f"{what} {missing.missing}"
