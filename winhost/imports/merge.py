"""Merge several files of one machine into its facts.

Functions in two files are matched by their location first, then by their ids. Of two values the one of greater worth
counts: an exact figure replaces a rounded one. If two values of equal worth differ, the fact is unknown, and the user
gets a warning. Files of two machines are refused. A fact that no file has is unknown, with the reason.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, field, fields, replace
from itertools import count
from typing import Any, cast

from winhost import __version__
from winhost.core.answers import Json, Record, RemoteFault, Unknown
from winhost.core.dataclass import dataclass
from winhost.imports.observation import (
    FileObservations,
    Observation,
    SeenFunction,
    State,
    Unreported,
    Value,
    Worth,
    contradiction_error,
    unreadable_file_error,
)
from winhost.imports.storage import DISK_NUMBER
from winhost.model.errors import UsageError, visible
from winhost.model.facts import Answer, Facts
from winhost.resources.base import ResourceType
from winhost.resources.registry import WINDOWS
from winhost.resources.windows.pci_device import PciDevice

_IDS_WITHOUT_SUBSYSTEM = 2


@dataclass(eq=False)
class MachineFunction:
    """A PCI function of the machine, as each file describes it."""

    seen: list[tuple[str, SeenFunction]] = field(default_factory=list)

    @property
    def location(self) -> str | None:
        """The location path if a file has one, else the bus address."""
        paths = [function.location for _, function in self.seen if function.location]
        return next(iter(paths), None) or next(
            (function.position for _, function in self.seen if function.position), None
        )

    @property
    def ids(self) -> str:
        """The most complete ids in any file."""
        return max((function.ids for _, function in self.seen), key=len)


def match_functions(files: Sequence[tuple[str, FileObservations]]) -> list[MachineFunction]:
    """Match the functions of all files. Raises UsageError: GpusDoNotMatch, Contradiction, NotReadable."""
    found: list[MachineFunction] = []
    complete: str | None = None
    for file, observations in sorted(files, key=lambda each: _order(each[1])):
        functions = observations.functions or ()
        for position, times in Counter(function.position for function in functions).items():
            if position is not None and times > 1:
                raise unreadable_file_error(
                    file, f"lists {position} {times} times", "Import one listing of one machine."
                )
        _join(found, file, functions, complete)
        complete = complete or (file if observations.every_function else None)
    by_location: dict[str, MachineFunction] = {}
    for each in found:
        other = by_location.setdefault(each.location, each) if each.location else each
        if other is not each:
            (one, first), (two, second) = other.seen[0], each.seen[0]
            raise contradiction_error(f"what is at {each.location}", (one, first.name), (two, second.name))
    return found


def _order(observations: FileObservations) -> tuple[bool, int]:
    """Return a sort key: a complete list comes first, so that functions missing in it are noticed; then the files with
    more positions.
    """
    functions = observations.functions or ()
    placed = 2 * any(each.location for each in functions) + any(each.address for each in functions)
    return not observations.every_function, -placed


def _join(found: list[MachineFunction], file: str, functions: Iterable[SeenFunction], complete: str | None) -> None:
    unmatched, free = [], list(found)
    for function in functions:
        same = next((each for each in free if _positions_agree(each, function)), None)
        if same is None:
            unmatched.append(function)
        else:
            same.seen.append((file, function))
            free.remove(same)
    for alike in _alike(unmatched):
        fitting = [each for each in free if _fits(each, alike[0])]
        _join_alike(found, fitting, file, alike, complete)
        free = [each for each in free if each not in fitting]


def _positions_agree(one: MachineFunction, other: SeenFunction) -> bool:
    positions = {each.position for _, each in one.seen} | {_instance(each) for _, each in one.seen}
    shared = positions & {other.position, _instance(other)} - {None}
    return bool(shared) and (_fits(one, other) or not any(_differ(function, other) for _, function in one.seen))


def _differ(one: SeenFunction, other: SeenFunction) -> bool:
    """Tell whether two functions differ by their ids, else by their models, because tools shorten names: `GeForce GTX
    108...`.
    """
    if one.ids and other.ids:
        return not _ids_agree(one.ids, other.ids)
    first, second = (_model(each.name) for each in (one, other))
    return bool(first and second) and not any(a.startswith(b) or b.startswith(a) for a in first for b in second)


def _model(name: str) -> list[str]:
    """Return the words with digits of a name as lspci writes it: `8000` of `TU102GL [Quadro RTX 8000]`."""
    return re.findall(r"[a-z]*\d{2,}[a-z]*", name[name.rfind("[") + 1 :].casefold())


def _instance(function: SeenFunction) -> str | None:
    value = function.state.get("instance")
    return str(value.value) if isinstance(value, Observation) else None


def _alike(functions: Iterable[SeenFunction]) -> list[list[SeenFunction]]:
    groups: defaultdict[str, list[SeenFunction]] = defaultdict(list)
    for function in functions:
        groups[function.ids or function.name.casefold()].append(function)
    return list(groups.values())


def _fits(one: MachineFunction, other: SeenFunction) -> bool:
    """Tell whether the ids agree as far as both have them; without ids, whether the names agree."""
    for _, function in one.seen:
        if function.ids and other.ids:
            return _ids_agree(function.ids, other.ids)
    return any(function.name.casefold() == other.name.casefold() for _, function in one.seen)


def _ids_agree(one: str, other: str) -> bool:
    parts = list(zip(one.split("&"), other.split("&"), strict=False))
    return len(parts) >= _IDS_WITHOUT_SUBSYSTEM and all(a == b for a, b in parts)


def _join_alike(
    found: list[MachineFunction],
    free: list[MachineFunction],
    file: str,
    alike: list[SeenFunction],
    complete: str | None,
) -> None:
    if not free and complete is None:
        found += [MachineFunction([(file, function)]) for function in alike]
    elif len(free) == len(alike):
        for each, function in zip(free, _interchangeable(alike), strict=True):
            each.seen.append((file, function))
    else:
        other = free[0].seen[0][0] if free else str(complete)
        raise UsageError(
            "GpusDoNotMatch",
            what=f"{visible(file)} lists {len(alike)} of {visible(alike[0].name)}, {visible(other)} lists {len(free)}",
            meaning="They are from different machines, or one of them does not list every GPU, "
            "and nothing tells the GPUs apart.",
            hint="Leave one of the two files out, or add one that lists every GPU: lspci -vv -nn.",
        )


def _interchangeable(alike: list[SeenFunction]) -> list[SeenFunction]:
    """Give functions that cannot be told apart only their common properties, and no location."""
    if len(alike) == 1:
        return alike
    common: dict[str, Value] = {}
    differ = Unreported(f"{len(alike)} GPUs alike differ in it, and nothing says which is which")
    for name in dict.fromkeys(name for function in alike for name in function.state):
        first, *others = (function.state.get(name) for function in alike)
        common[name] = first if first is not None and all(each == first for each in others) else differ
    return [replace(function, state=common, location=None, address=None) for function in alike]


Warn = Callable[[str], None]

ORIGIN = "imported"
UNPLACED = "PCIUNPLACED"
NOT_READ = "not in what was imported"
_LISTING_INCOMPLETE = (
    "no GPU by NVIDIA is listed, but only SurveyDDA.ps1 and lspci -vv -nn list those that show nothing"
)
IDENTITY = ("hostname", "machine_id")  # values that must not differ between files of one machine


@dataclass
class _Instance:
    """The values of one instance. values: each with its file; missing_reasons: by name, why a value is missing;
    disputed: values that differ between files.
    """

    what: str
    values: dict[str, tuple[str, Observation]] = field(default_factory=dict)
    missing_reasons: dict[str, str] = field(default_factory=dict)
    disputed: dict[str, tuple[Worth, UsageError]] = field(default_factory=dict)

    def add(self, file: str, state: State) -> None:
        """Add the values of a file. Raises UsageError (Contradiction) if files are of different machines."""
        for name, value in state.items():
            before = self.values.get(name)
            if not isinstance(value, Observation):
                self.missing_reasons.setdefault(name, value.why)
            elif before is None or value.worth > before[1].worth:
                self.values[name] = (file, value)
            elif value.worth == before[1].worth and value.value != before[1].value:
                both = (before[0], str(before[1].value)), (file, str(value.value))
                found = contradiction_error(f"{self.what}.{name}", *both)
                if name in IDENTITY:
                    raise found
                self.disputed[name] = (value.worth, found)

    def state(self, resource: ResourceType, warn: Warn) -> dict[str, Json]:
        """Return every property of the resource, known or not, and warn of values that differ."""
        return {each.name: self._value(each.name, warn) for each in fields(cast(Any, resource.state))}

    def _value(self, name: str, warn: Warn) -> Json:
        known = self.values.get(name)
        worth, dispute = self.disputed.get(name, (None, None))
        if dispute and known and known[1].worth == worth:
            warn(f"{dispute.what}; it counts as unknown")
            return asdict(unknown(dispute.what))
        return known[1].value if known else asdict(unknown(self.missing_reasons.get(name, NOT_READ)))


def merge_files(
    files: Sequence[tuple[str, str, FileObservations]], host: str | None, read_at: str, warn: Warn = lambda _: None
) -> Facts:
    """Merge files, each with its kind, into the facts of one machine. warn: is called for facts in which files differ;
    read_at: the time of the import, ISO 8601 in UTC, because files have their own time in local time or not at all.

    Raises UsageError: Contradiction, GpusDoNotMatch, NotReadable, Nameless.
    """
    observations = [(file, each) for file, _, each in files]
    kinds = ", ".join(dict.fromkeys(kind for _, kind, _ in files))
    resources: dict[str, Answer] = {resource: unknown(NOT_READ) for resource in WINDOWS}
    resources.update(_with_disk_guids(_resources(observations, warn)))
    if any(each.functions or each.every_function for _, each in observations):
        found = match_functions(observations)
        complete = any(each.every_function or each.every_gpu for _, each in observations)
        known = complete or not found or not all(map(_is_other_vendor, found))
        resources[PciDevice.resource_type.name] = _gpus(found, warn) if known else unknown(_LISTING_INCOMPLETE)
    return Facts(
        host=_host(observations, host),
        origin=ORIGIN,
        read_at=read_at,
        winhost=f"{__version__}, from {kinds}",
        resources=resources,
    )


def _is_other_vendor(function: MachineFunction) -> bool:
    if function.ids:
        return not function.ids.startswith("VEN_10DE")
    names = " ".join(each.name for _, each in function.seen)
    return bool(re.search(r"\b(?:AMD|Radeon|Intel|Matrox|Microsoft)\b", names, re.IGNORECASE))


def unknown(why: str) -> Unknown:
    """Make a fact that no file has. why: the reason."""
    return Unknown(RemoteFault("NotImported", message=why))


def _host(observations: Sequence[tuple[str, FileObservations]], requested: str | None) -> str:
    named = [(file, each.host) for file, each in observations if each.host]
    for file, name in named[1:]:
        if name.casefold() != named[0][1].casefold():
            raise contradiction_error("the machine's name", named[0], (file, name))
    if requested or named:
        return requested or named[0][1]
    files = visible(", ".join(file for file, _ in observations))
    raise UsageError("Nameless", what=f"{files}: no machine name found", hint="Set it with --host NAME.")


def _resources(observations: Sequence[tuple[str, FileObservations]], warn: Warn) -> Mapping[str, Answer]:
    by_resource: defaultdict[str, dict[str, _Instance]] = defaultdict(dict)
    for file, each in observations:
        for resource, states in each.resources.items():
            for key, state in states.items():
                by_resource[resource].setdefault(key, _Instance(f"{resource} {key}".strip())).add(file, state)
    found: dict[str, Answer] = {}
    for resource, instances in by_resource.items():
        kind = WINDOWS[resource]
        keyed = ((instance, dict(zip(kind.key, (key,), strict=False))) for key, instance in instances.items())
        found[resource] = tuple(Record(instance.state(kind, warn), key) for instance, key in keyed)
    return found


def _with_disk_guids(resources: Mapping[str, Answer]) -> Mapping[str, Answer]:
    """Replace the disk numbers of partitions by the GUIDs of these disks, which are in another file."""
    disks, partitions = resources.get("Disk"), resources.get("Partition")
    if not isinstance(partitions, tuple):
        return resources
    known = disks if isinstance(disks, tuple) else ()
    guids = {f"{DISK_NUMBER}{each.state['number']}": each.state["guid"] for each in known}
    missing = asdict(unknown("Get-Disk | ConvertTo-Json says it, imported together with this"))
    placed = []
    for each in partitions:
        disk = each.state["disk"]
        placed.append(
            replace(each, state={**each.state, "disk": guids.get(disk, missing)}) if isinstance(disk, str) else each
        )
    return {**resources, "Partition": tuple(placed)}


def unplaced_location(number: int) -> str:
    """Make the key that a GPU has in place of a location, by its number in a list."""
    return f"{UNPLACED}({number})#PCI(0000)"


def _gpus(functions: Sequence[MachineFunction], warn: Warn) -> Answer:
    numbers = count(1)
    records = []
    for function in functions:
        location = function.location
        if location is None:
            location = unplaced_location(next(numbers))
        instance = _Instance(f"the GPU at {location}")
        for file, each in function.seen:
            instance.add(file, each.state)
        records.append(
            Record(instance.state(PciDevice.resource_type, warn), {"location": location, "device": function.ids})
        )
    return tuple(sorted(records, key=lambda record: record.key["location"]))
