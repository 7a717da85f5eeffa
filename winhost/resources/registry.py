"""Every resource that winhost knows: those of Windows, and those of Linux, in its WSL or on a machine of its own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import Any

from winhost.core.answers import HostAnswers, Json, Key, MissingFact, Unavailable
from winhost.core.rules import ResourceRules, restarted_by_its_vm
from winhost.model.facts import Answer, Facts
from winhost.model.lazy import LazySequence
from winhost.model.once import once
from winhost.resources.base import ResourceType, State
from winhost.resources.shared import ACCESS, BESIDE, RUNNING, SEED, WITHIN_PARTITION, WITHIN_VM

_SCRIPTS = {"windows": "script.ps1", "linux": "script.py"}  # in the folder of each resource
# Modules that declare several small resources; any other one is declared in its folder.
_TABLES = {
    "windows": ("read_only", "vms", "network", "accounts", "distros", "disks", "boot_entries"),
    "linux": ("read_only", "system", "files", "packages", "accounts", "containers", "models", "cluster"),
}


class _ResourceTypes(Mapping[str, ResourceType]):
    """The resource types of some systems, by name. A lookup imports the module that declares the type; iterating
    imports all in the order of reading: the host's identity comes first, so that a refusal there explains the rest.
    """

    def __init__(self, *systems: str) -> None:
        self._systems = systems
        self._known = dict[str, ResourceType]()  # asked for a thousand times in a run

    @cached_property
    def _modules(self) -> Mapping[str, Sequence[str]]:
        """The modules that may declare a type, by the name of its folder: hyperv_role is HyperVRole."""
        found = dict[str, Sequence[str]]()
        for system in self._systems:
            tables = [f"{system}.{name}" for name in _TABLES[system]]
            for entry in (Path(__file__).parent / system).iterdir():
                if (entry / _SCRIPTS[system]).is_file():
                    own = (entry / "__init__.py").is_file()
                    found[entry.name.replace("_", "")] = [f"{system}.{entry.name}"] if own else tables
        return found

    def __getitem__(self, name: str) -> ResourceType:
        found = self._module(name)
        if found is None:
            raise KeyError(name)
        return found

    def _module(self, name: str) -> ResourceType | None:
        for module in self._modules.get(name.lower(), ()):
            if name in self._known:
                break
            self._known |= {each.resource_type.name: each.resource_type for each in _declared(module)}
        return self._known.get(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._module(name) is not None

    def __iter__(self) -> Iterator[str]:
        return (state.resource_type.name for state in self.states)

    def __len__(self) -> int:
        return len(self._modules)

    @cached_property
    def states(self) -> tuple[type[State], ...]:
        modules = {module for modules in self._modules.values() for module in modules}
        found = [state for module in modules for state in _declared(module)]

        def order(state: type[State]) -> tuple[int, int, str]:
            system = state.__module__.split(".")[2]
            return self._systems.index(system), state.resource_type.order, state.resource_type.name

        return tuple(sorted(found, key=order))


@once
def _declared(name: str) -> Sequence[type[State]]:
    """The states that a module declares; what it imports is others'."""
    module = import_module(f"{__package__}.{name}")
    own = (each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__)
    return [each for each in own if issubclass(each, State)]


WINDOWS = _ResourceTypes("windows")
LINUX = _ResourceTypes("linux")
RESOURCE_TYPES = _ResourceTypes("windows", "linux")
SYSTEMS: Mapping[str, Mapping[str, ResourceType]] = {"windows": WINDOWS, "linux": LINUX}
WINDOWS_STATES: Sequence[type[State]] = LazySequence(lambda: WINDOWS.states)
LINUX_STATES: Sequence[type[State]] = LazySequence(lambda: LINUX.states)


class _Rules(Mapping[str, ResourceRules]):
    """The rules of all resources, made for the first who looks one up: their order follows from all of them."""

    def __init__(self, make: Callable[[], Mapping[str, ResourceRules]]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Mapping[str, ResourceRules]:
        return self._make()

    def __getitem__(self, name: str) -> ResourceRules:
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


def _rules() -> Mapping[str, ResourceRules]:
    """The declarations of resources for changes: each after what it names; of those that are ready, in the order of
    reading. One of a distro of WSL may also be in a VM of winhost's own, or in a partition that it made.
    """
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for resource in RESOURCE_TYPES.values():
        sorter.add(resource.name, *resource.after, *filter(None, [resource.requires]))
    sorter.prepare()
    names, found = list(RESOURCE_TYPES), dict[str, ResourceRules]()
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=names.index)
        sorter.done(*ready)
        for resource in map(RESOURCE_TYPES.__getitem__, ready):
            also = (WITHIN_VM, WITHIN_PARTITION) if resource.name in LINUX else ()
            declared: dict[str, Any] = {
                **{each.name: getattr(resource, each.name) for each in fields(ResourceRules)},
                "order": len(found),
                "sets": tuple(resource.sets),
                "requires": resource.requires or "",
                "within": (*also, resource.within) if resource.within else (),
            }
            found[resource.name] = ResourceRules(**declared)
    return found


RULES = _Rules(_rules)


def _changed(change: Callable[[ResourceRules], ResourceRules]) -> _Rules:
    """Change the rules of the resources of a Linux."""
    return _Rules(lambda: {name: change(rules) if name in LINUX else rules for name, rules in RULES.items()})


# On a machine of its own nothing of Linux waits for Windows, or goes with a distro.
RULES_OF_LINUX = _changed(lambda rules: replace(rules, requires="", within=()))

# A restart of a guest is never one of the host.
RULES_WITH_GUEST = _changed(restarted_by_its_vm)

# The Linux beside Windows restarts the host when it restarts, and is there only while Windows is not.
RULES_BESIDE_WINDOWS = _changed(lambda rules: replace(rules, requires=RUNNING))


def is_beside_windows(facts: Facts) -> bool:
    """Tell whether a Linux takes turns with this Windows, or is being installed for that."""
    made = facts.resources.get(BESIDE)
    return isinstance(made, tuple) and any(each.state.get("made") is not False for each in made)


def _has_guest(facts: Facts) -> bool:
    """Tell whether winhost made a VM there and set up its Linux."""
    seeds = facts.resources.get(SEED)
    return isinstance(seeds, tuple) and bool(seeds)


class _WithoutLinux(Mapping[str, Answer]):
    """Answers before anybody is let in: what is in a Linux waits for that of the guest, where one is to come up, or of
    what runs later, else of the distro.
    """

    def __init__(self, facts: Facts) -> None:
        self._known = facts.resources
        until = RUNNING if is_beside_windows(facts) else SEED if _has_guest(facts) else ACCESS
        self._waits = Unavailable(until)

    def __getitem__(self, name: str) -> Answer:
        if name in self._known:
            return self._known[name]
        if name in LINUX:
            return self._waits
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._known, *LINUX)))

    def __len__(self) -> int:
        return len([*self])


def is_linux(facts: Facts) -> bool:
    """Tell whether the host is a Linux of its own: then its facts hold nothing of Windows, not even why not."""
    if any(name in WINDOWS for name in facts.resources):
        return False
    return any(name in LINUX for name in facts.resources)


def answer(facts: Facts, resource: str) -> Answer:
    """The answer that facts hold about a resource."""
    return host_answers(facts).answer(resource)


def host_answers(facts: Facts) -> HostAnswers:
    """The answers of a host. Resources of a Linux that is not reached yet are unavailable: its facts lack them."""
    if is_linux(facts):
        return HostAnswers(facts.resources, RULES_OF_LINUX)
    beside = RULES_BESIDE_WINDOWS if is_beside_windows(facts) else RULES
    return HostAnswers(_WithoutLinux(facts), RULES_WITH_GUEST if _has_guest(facts) else beside)


def misfit_of(resource: str, key: Key, desired: Mapping[str, Json]) -> str | None:
    """Say why this cannot be desired of the resource with this name, or None."""
    known = RESOURCE_TYPES.get(resource)
    return f"there is no resource {resource}" if known is None else known.misfit(key, desired)


def titled(resource: str) -> str:
    """The title of a resource in sentences for people. A journal or facts may name an unknown one: that stays
    its name.
    """
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
