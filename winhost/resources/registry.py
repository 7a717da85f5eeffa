"""All resource types: those of Windows, and those of a Linux, in WSL or on a machine of its own."""

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
from winhost.resources.shared import ACCESS, INSTALLER, RUNNING, SEED, WITHIN_PARTITION, WITHIN_VM

_SCRIPTS = {"windows": "script.ps1", "linux": "script.py"}  # in the folder of each resource
# Modules that declare several small resource types. Any other type is declared in its own folder.
_TABLES = {
    "windows": ("read_only", "vms", "network", "accounts", "distros", "disks", "boot_entries"),
    "linux": ("read_only", "system", "files", "packages", "accounts", "containers", "models", "cluster"),
}


class _ResourceTypes(Mapping[str, ResourceType]):
    """The resource types of some systems, by name, in the order in which they are read.

    A lookup imports only the module that declares the type; iterating imports all modules. The host's identity is read
    first: a failure there explains the others.
    """

    def __init__(self, *systems: str) -> None:
        self._systems = systems
        self._cache = dict[str, ResourceType]()

    @cached_property
    def _modules(self) -> Mapping[str, Sequence[str]]:
        """The modules that may declare a type, by the name of its folder without underscores: hypervrole."""
        modules = dict[str, Sequence[str]]()
        for system in self._systems:
            tables = [f"{system}.{name}" for name in _TABLES[system]]
            for entry in (Path(__file__).parent / system).iterdir():
                if (entry / _SCRIPTS[system]).is_file():
                    is_package = (entry / "__init__.py").is_file()
                    modules[entry.name.replace("_", "")] = [f"{system}.{entry.name}"] if is_package else tables
        return modules

    def __getitem__(self, name: str) -> ResourceType:
        resource = self._find(name)
        if resource is None:
            raise KeyError(name)
        return resource

    def _find(self, name: str) -> ResourceType | None:
        for module in self._modules.get(name.lower(), ()):
            if name in self._cache:
                break
            self._cache |= {each.resource_type.name: each.resource_type for each in _declared_states(module)}
        return self._cache.get(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def __iter__(self) -> Iterator[str]:
        return (state.resource_type.name for state in self.states)

    def __len__(self) -> int:
        return len(self._modules)

    @cached_property
    def states(self) -> tuple[type[State], ...]:
        modules = {module for modules in self._modules.values() for module in modules}
        states = [state for module in modules for state in _declared_states(module)]

        def order(state: type[State]) -> tuple[int, int, str]:
            system = state.__module__.split(".")[2]
            return self._systems.index(system), state.resource_type.order, state.resource_type.name

        return tuple(sorted(states, key=order))


@once
def _declared_states(name: str) -> Sequence[type[State]]:
    """Return the states that a module declares itself, without those that it imports."""
    module = import_module(f"{__package__}.{name}")
    classes = (each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__)
    return [each for each in classes if issubclass(each, State)]


WINDOWS = _ResourceTypes("windows")
LINUX = _ResourceTypes("linux")
RESOURCE_TYPES = _ResourceTypes("windows", "linux")
SYSTEMS: Mapping[str, Mapping[str, ResourceType]] = {"windows": WINDOWS, "linux": LINUX}
WINDOWS_STATES: Sequence[type[State]] = LazySequence(lambda: WINDOWS.states)
LINUX_STATES: Sequence[type[State]] = LazySequence(lambda: LINUX.states)


class _Rules(Mapping[str, ResourceRules]):
    """The rules of all resources, built on the first lookup, because their order depends on all declarations."""

    def __init__(self, build: Callable[[], Mapping[str, ResourceRules]]) -> None:
        self._build = build

    @cached_property
    def _rules(self) -> Mapping[str, ResourceRules]:
        return self._build()

    def __getitem__(self, name: str) -> ResourceRules:
        return self._rules[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)


def _build_rules() -> Mapping[str, ResourceRules]:
    """Build the rules of all resources in the order in which they are changed.

    A resource follows those that its `after` and `requires` name; otherwise the order of reading decides. A resource of
    a Linux may be in a WSL distro, in a VM that winhost created, or in a partition that winhost created.
    """
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for resource in RESOURCE_TYPES.values():
        sorter.add(resource.name, *resource.after, *filter(None, [resource.requires]))
    sorter.prepare()
    names, rules = list(RESOURCE_TYPES), dict[str, ResourceRules]()
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=names.index)
        sorter.done(*ready)
        for resource in map(RESOURCE_TYPES.__getitem__, ready):
            containers = (WITHIN_VM, WITHIN_PARTITION) if resource.name in LINUX else ()
            declared: dict[str, Any] = {
                **{each.name: getattr(resource, each.name) for each in fields(ResourceRules)},
                "order": len(rules),
                "sets": tuple(resource.sets),
                "requires": resource.requires or "",
                "within": (*containers, resource.within) if resource.within else (),
            }
            rules[resource.name] = ResourceRules(**declared)
    return rules


RULES = _Rules(_build_rules)


def _linux_rules(change: Callable[[ResourceRules], ResourceRules]) -> _Rules:
    """Return all rules, with those of Linux resources changed."""
    return _Rules(lambda: {name: change(rules) if name in LINUX else rules for name, rules in RULES.items()})


# On a Linux machine no resource requires Windows, and none is removed with a distro.
LINUX_RULES = _linux_rules(lambda rules: replace(rules, requires="", within=()))

# A restart of a guest does not restart the host.
GUEST_RULES = _linux_rules(restarted_by_its_vm)

# With dual boot, a restart of the Linux restarts the host, and its resources can be read only while it runs.
DUAL_BOOT_RULES = _linux_rules(lambda rules: replace(rules, requires=RUNNING))


def is_dual_boot(facts: Facts) -> bool:
    """Tell whether a Linux is installed, or being installed, for dual boot with this Windows."""
    installers = facts.resources.get(INSTALLER)
    return isinstance(installers, tuple) and any(each.state.get("made") is not False for each in installers)


def _has_guest(facts: Facts) -> bool:
    """Tell whether winhost created a VM on this host and set up the Linux in it."""
    seeds = facts.resources.get(SEED)
    return isinstance(seeds, tuple) and bool(seeds)


class _AnswersWithoutLinux(Mapping[str, Answer]):
    """The answers of a Windows host whose Linux cannot be reached yet: its resources are unavailable.

    They become available with the resource that makes the Linux reachable: `RunningSystem` for dual boot, `VmSeed` for
    a VM, otherwise `WslAccess`.
    """

    def __init__(self, facts: Facts) -> None:
        self._answers = facts.resources
        self._unavailable = Unavailable(RUNNING if is_dual_boot(facts) else SEED if _has_guest(facts) else ACCESS)

    def __getitem__(self, name: str) -> Answer:
        if name in self._answers:
            return self._answers[name]
        if name in LINUX:
            return self._unavailable
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._answers, *LINUX)))

    def __len__(self) -> int:
        return len([*self])


def is_linux(facts: Facts) -> bool:
    """Tell whether the host is a Linux machine. Its facts then contain no Windows resource, not even an unknown one."""
    if any(name in WINDOWS for name in facts.resources):
        return False
    return any(name in LINUX for name in facts.resources)


def answer(facts: Facts, resource: str) -> Answer:
    """Return the answer about a resource in facts."""
    return host_answers(facts).answer(resource)


def host_answers(facts: Facts) -> HostAnswers:
    """Return the answers of a host with its rules. Resources of a Linux that cannot be reached yet are unavailable."""
    if is_linux(facts):
        return HostAnswers(facts.resources, LINUX_RULES)
    rules = GUEST_RULES if _has_guest(facts) else DUAL_BOOT_RULES if is_dual_boot(facts) else RULES
    return HostAnswers(_AnswersWithoutLinux(facts), rules)


def check_desired(resource: str, key: Key, desired: Mapping[str, Json]) -> str | None:
    """Return what is wrong with the name of a resource, its key's parts or its desired properties' names, or None."""
    resource_type = RESOURCE_TYPES.get(resource)
    return f"there is no resource {resource}" if resource_type is None else resource_type.check_names(key, desired)


def title_of(resource: str) -> str:
    """Return a resource's title for messages; its name if the resource is unknown, as in journals of other versions."""
    return RESOURCE_TYPES[resource].title if resource in RESOURCE_TYPES else resource


def label(resource: str) -> str:
    """Return the part of a resource's key that identifies an instance for people; empty if a host has only one."""
    parts = RESOURCE_TYPES[resource].key
    return "distro" if "distro" in parts else next(iter(parts), "")


def describe_missing(missing: MissingFact) -> str:
    """Return a message that says which fact is missing, and why."""
    resource, _, name = missing.fact.partition(".")
    what = f"{title_of(resource)} ({name})" if name else title_of(resource)
    if isinstance(missing.missing, Unavailable):
        return f"{what} cannot be read before {title_of(missing.missing.unavailable)} is there"
    return f"{what} {missing.missing}"
