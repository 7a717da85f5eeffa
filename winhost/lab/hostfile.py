"""Host files: complete machines, and deltas on them. A recorded facts file is a host file, too.

A base has `resources`, a delta has `base` and `change`; both may have `lab`. `change` maps resources to changes: to a
mapping of properties for a resource without a key, to a list for one with a key. An entry of the list has `match` (key
parts and properties, which at least one instance must have) with `set` or `remove: true`, or it has `add` (an
instance). `remove` removes the instances with that key from all resources. `{unknown: …}` means that a resource cannot
be read. Sizes and addresses may be written as text: `32 GiB`, `0x6000000000`.

A host file describes what exists. The machine decides which of it a session can read: for example no VMs before the
role, and no ranges of a dismounted GPU.
"""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from winhost import __version__
from winhost.core.answers import Json, Record, Unknown
from winhost.lab.physics.lab_section import PART_PHYSICS, LabSection
from winhost.lab.physics.simulated_machine import Machine
from winhost.model.errors import UsageError, did_you_mean
from winhost.model.facts import Answer, Facts
from winhost.model.once import once
from winhost.model.shipped import example_hosts
from winhost.model.units import GiB, KiB, MiB
from winhost.model.written import Closed
from winhost.model.yamlfile import Loaded, Loc, Mistake, load_json, load_with_positions, refuse_mistakes
from winhost.resources.factsfile import read_facts
from winhost.resources.host import WrongState, typed_instance
from winhost.resources.registry import WINDOWS, WINDOWS_STATES
from winhost.resources.windows.vms import DISABLED, ENABLED

SCHEMA = "winhost.host/2"
READ_AT = "2026-01-01T00:00:00Z"  # of synthetic hosts; a fixed time keeps outputs comparable

_STATES = {state.resource_type.name: state for state in WINDOWS_STATES}
_UNITS = {"KiB": KiB, "MiB": MiB, "GiB": GiB, "TiB": GiB * 1024}

ResourceStates = dict[str, Any]
"""Resources, each with its instances as JSON, or with `{unknown: …}`."""


class HostFileInstance(Closed):
    """An instance, as in a facts file."""

    key: dict[str, str] = Field(default_factory=dict)
    state: dict[str, JsonValue]


class Edit(Closed):
    """One change to the instances of a resource."""

    match: dict[str, JsonValue] | None = None
    set: dict[str, JsonValue] | None = None
    remove: Literal[True] | None = None
    add: HostFileInstance | None = None

    @model_validator(mode="after")
    def _has_one_action(self) -> "Edit":
        actions = {name for name in ("match", "set", "remove", "add") if getattr(self, name) is not None}
        if actions not in ({"match", "set"}, {"match", "remove"}, {"add"}):
            raise ValueError("should be {match, set}, {match, remove: true} or {add}")
        return self


PartsPhysics = create_model(
    "PartsPhysics",
    __base__=Closed,
    **{name: (model, Field(default_factory=model)) for name, model in PART_PHYSICS.items()},  # type: ignore[call-overload]
)


class WrittenLabSection(LabSection):
    """`lab:` of a host file. Unknown names of parts and of their properties are refused."""

    found: PartsPhysics = Field(default_factory=PartsPhysics)  # type: ignore[valid-type]  # made above


class HostFile(Closed):
    """One host, complete or as a delta."""

    schema_id: Literal["winhost.host/2"] = Field(alias="schema")
    origin: Literal["synthetic"]
    about: str = Field(description="one line: what is special about this host")
    host: str | None = None
    base: str | None = Field(
        default=None,
        pattern=r"^\w[\w.-]{0,199}$",
        description="the name of another host file, without .yaml: beside this one, or shipped",
    )
    resources: dict[str, list[HostFileInstance] | dict[str, JsonValue]] = Field(default_factory=dict)
    change: dict[str, list[Edit] | dict[str, JsonValue]] = Field(default_factory=dict)
    lab: WrittenLabSection = Field(default_factory=WrittenLabSection)

    @model_validator(mode="after")
    def _is_complete_or_delta(self) -> "HostFile":
        if (self.base is None) == (not self.resources):
            raise ValueError("should have either resources (a complete host) or a base (a delta)")
        if self.base is None and (self.change or self.host is None):
            raise ValueError("a complete host has a host name and no change")
        return self


class RecordedFacts(BaseModel):
    """The origin of a facts file; its other fields are checked later."""

    model_config = ConfigDict(extra="allow")

    origin: str = ""  # a missing origin is reported with the other missing fields

    @field_validator("origin")
    @classmethod
    def _is_not_imported(cls, origin: str) -> str:
        if origin == "imported":
            raise ValueError("is imported: too little to make a twin of; use what `winhost detect -o` wrote")
        return origin


def host_files() -> list[Path]:
    """Return the paths of the shipped host files, in the order of their names."""
    return list(example_hosts().values())


def find(name: str) -> Path:
    """Return the path of a shipped host file, or `name` itself if it is a path. Raises UsageError: UnknownHostFile."""
    path = Path(name)
    if path.suffix and path.is_file():
        return path
    shipped = example_hosts().get(name)
    if shipped is None:
        suggestion = did_you_mean(name, [path.stem for path in host_files()])
        raise UsageError(
            "UnknownHostFile",
            what=f"there is no host file {name!r}{suggestion}",
            hint="Give the path of a host file, or one of these: winhost lab list",
        )
    return shipped


def expand_all() -> dict[str, tuple[Facts, LabSection]]:
    """Expand all shipped host files; return them by name. Raises UsageError (FileFaults)."""
    return {path.stem: expand(path) for path in host_files()}


def expand(path: Path) -> tuple[Facts, LabSection]:
    """Return the facts that a session reads from this host, and its lab section. Raises UsageError (FileFaults)."""
    if path not in example_hosts().values():
        return _expand(path)
    facts, lab = _expand_shipped(path)
    return deepcopy(facts), lab.model_copy(deep=True)


def _expand(path: Path) -> tuple[Facts, LabSection]:
    if path.suffix == ".json":
        load_json(path, RecordedFacts)
        return read_facts(path), LabSection()
    expanded = _ExpandedFile(path)
    answers, lab = expanded.answers(), LabSection.model_validate(expanded.lab())
    facts = Machine(Facts(expanded.host, "synthetic", READ_AT, __version__, answers), lab).facts()
    hidden = {
        resource: tuple({"key": dict(r.key), "state": dict(r.state)} for r in answer)
        for resource, answer in answers.items()
        if isinstance(answer, tuple) and not _is_visible(facts.resources[resource], answer)
    }
    return facts, lab.model_copy(update={"hidden": hidden})


# Only shipped files are cached: a user may change their own file between two calls.
_expand_shipped = once(_expand)


def _is_visible(shown: Answer, answer: Answer) -> bool:
    """Tell whether a session reads the same instances and properties as in the file."""
    if not isinstance(shown, tuple) or not isinstance(answer, tuple):
        return shown == answer
    states = [{name: each.state.get(name) for name in other.state} for each, other in zip(shown, answer, strict=False)]
    return [each.key for each in shown] == [each.key for each in answer] and states == [each.state for each in answer]


class _ExpandedFile:
    """A host file applied to its bases. Raises UsageError (FileFaults)."""

    def __init__(self, path: Path, dependents: tuple[Path, ...] = ()) -> None:
        self.path = path
        self.loaded: Loaded[HostFile] = load_with_positions(
            path, HostFile, lambda file: _find_mistakes(file, path, dependents)
        )
        file = self.loaded.value
        self.base: _ExpandedFile | None = None
        if file.base:
            base, base_dependents = _find_base(path, file.base), (*dependents, path)
            shipped = base in example_hosts().values() and base not in base_dependents
            self.base = _shipped_base(base) if shipped else _ExpandedFile(base, base_dependents)
        self.host: str = file.host or (self.base.host if self.base else "")
        self.resources: ResourceStates = deepcopy(self.base.resources) if self.base else _load_resources(file)
        refuse_mistakes(path, self._apply_change(file.change), self.loaded.positions)

    def answers(self) -> dict[str, Answer]:
        answers: dict[str, Answer] = {}
        for resource, instances in self.resources.items():
            if isinstance(instances, Mapping):
                answers[resource] = _unknown_adapter().validate_python(instances)
            else:
                answers[resource] = tuple(Record(each["state"], each["key"]) for each in instances)
        return answers

    def lab(self) -> dict[str, Any]:
        section = self.loaded.value.lab.model_dump(exclude_unset=True)
        return _merge(self.base.lab(), section) if self.base else section

    def _apply_change(self, change: Mapping[str, Any]) -> Iterator[Mistake]:
        for resource, edits in change.items():
            if isinstance(edits, list):
                yield from _apply_edits(self.resources, resource, edits)
            elif "unknown" in edits:
                self.resources[resource] = edits
            else:
                instances = self.resources.setdefault(resource, [{"key": {}, "state": {}}])
                instances[0]["state"] |= _parse_sizes(resource, edits)
        for resource in ("resources", "change"):
            for name in getattr(self.loaded.value, resource):
                yield from _find_state_mistakes((resource, name), name, self.resources[name])


_shipped_base = once(_ExpandedFile)  # most shipped hosts are deltas on a few bases, each of which is read once


def _find_base(path: Path, name: str) -> Path:
    """Return the path of a base: next to the file, or else among the shipped hosts."""
    sibling = path.with_name(f"{name}.yaml")
    return sibling if sibling.is_file() else example_hosts().get(name, sibling)


def _find_mistakes(file: HostFile, path: Path, dependents: tuple[Path, ...]) -> Iterator[Mistake]:
    """Report mistakes that the model cannot express."""
    if file.base:
        yield from _find_base_mistakes(_find_base(path, file.base), (*dependents, path))
    if file.resources:
        yield from (
            (("resources",), f"{name} is missing") for name in _required_resources() if name not in file.resources
        )
    for section, entries in (("resources", file.resources), ("change", file.change)):
        for resource, value in entries.items():
            if problem := _find_shape_problem(resource, value):
                yield (section, resource), problem


@once
def _required_resources() -> list[str]:
    """Return the resources without a key that have no usual state, so that each complete host must state them."""
    empty_machine = Machine(Facts("", "synthetic", READ_AT, __version__, {}))
    return sorted(name for name, type_ in WINDOWS.items() if not type_.key and not empty_machine.instances(name))


def _find_base_mistakes(base: Path, dependents: tuple[Path, ...]) -> Iterator[Mistake]:
    if base in dependents:
        yield ("base",), "is based on itself"
    elif not base.is_file():
        suggestion = did_you_mean(base.stem, [other.stem for other in (*base.parent.glob("*.yaml"), *host_files())])
        yield ("base",), f"there is no host file {base.stem!r} beside this one or among the shipped ones{suggestion}"


def _find_shape_problem(resource: str, value: object) -> str | None:
    if resource not in WINDOWS:
        return f"is no resource{did_you_mean(resource, WINDOWS)}"
    if isinstance(value, Mapping) and "unknown" in value:
        try:
            _unknown_adapter().validate_python(value)
        except ValidationError:
            return "should be {unknown: {category: …}}, perhaps with code, hresults, cmdlet and message"
        return None
    if WINDOWS[resource].key:
        return None if isinstance(value, list) else f"should be a list: {resource} has a key"
    return None if isinstance(value, Mapping) else f"should be a mapping of properties: {resource} has no key"


@once
def _unknown_adapter() -> TypeAdapter[Unknown]:
    return TypeAdapter(Unknown)


def _load_resources(file: HostFile) -> ResourceStates:
    resources: ResourceStates = {}
    for resource, entry in file.resources.items():
        if isinstance(entry, list):
            resources[resource] = [{"key": each.key, "state": _parse_sizes(resource, each.state)} for each in entry]
        else:
            instances = [{"key": {}, "state": _parse_sizes(resource, entry)}]
            resources[resource] = entry if "unknown" in entry else instances
    resources.setdefault("AssignableDevice", [_make_assignment(each) for each in resources.get("PciDevice", ())])
    return resources


def _make_assignment(instance: Mapping[str, Any]) -> dict[str, Any]:
    assignment = DISABLED if instance["state"].get("problem") == 22 else ENABLED
    return {"key": instance["key"], "state": {"assignment": assignment, "present": True}}


def _apply_edits(resources: ResourceStates, resource: str, edits: list[Edit]) -> Iterator[Mistake]:
    instances: list[dict[str, Any]] = resources.setdefault(resource, [])
    for position, edit in enumerate(edits):
        if edit.add is not None:
            instances.append({"key": edit.add.key, "state": _parse_sizes(resource, edit.add.state)})
            if resource == "PciDevice":
                resources["AssignableDevice"].append(_make_assignment(instances[-1]))
            continue
        matches = [each for each in instances if _matches(edit.match or {}, each)]
        if not matches:
            yield ("change", resource, position, "match"), f"fits no instance of {resource}"
        for each in matches:
            if edit.remove:
                _remove(resources, each["key"])
            else:
                each["state"] |= _parse_sizes(resource, edit.set or {})


def _remove(resources: ResourceStates, key: Mapping[str, str]) -> None:
    """Remove the instances with this key from all resources: they describe the same thing."""
    for instances in resources.values():
        if isinstance(instances, list):
            instances[:] = [each for each in instances if each["key"] != key]


def _matches(desired: Mapping[str, Json], instance: Mapping[str, Any]) -> bool:
    properties = {**instance["state"], **instance["key"]}
    return all(name in properties and properties[name] == value for name, value in desired.items())


def _find_state_mistakes(loc: Loc, resource: str, instances: Any) -> Iterator[Mistake]:
    """Report values that the typed state of the resource refuses."""
    if isinstance(instances, Mapping):
        return
    state = _STATES[resource]
    for position, instance in enumerate(instances):
        position_of_instance = (*loc, position) if state.resource_type.key else loc
        if set(instance["key"]) != set(state.resource_type.key):
            yield position_of_instance, f"should have the key {', '.join(state.resource_type.key)}"
        properties = list(state.__annotations__)
        for name in set(instance["state"]) - set(properties):
            yield (*position_of_instance, name), f"is no property of {resource}{did_you_mean(name, properties)}"
        try:
            typed_instance(state, Record(instance["state"], instance["key"]))
        except WrongState as error:
            yield position_of_instance, error.faults


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings, and replace everything else."""
    result = dict(base)
    for name, value in changes.items():
        is_mapping = isinstance(value, Mapping) and isinstance(result.get(name), Mapping)
        result[name] = _merge(result[name], value) if is_mapping else value
    return result


def _parse_sizes(resource: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Convert sizes and addresses that were written as text to numbers, except in properties that are texts."""
    return {name: value if name in _text_properties(resource) else _parse_size(value) for name, value in state.items()}


@once
def _text_properties(resource: str) -> frozenset[str]:
    hints = get_type_hints(_STATES[resource])
    return frozenset(name for name, hint in hints.items() if str in (hint, *get_args(hint)))


def _parse_size(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value if "unknown" in value else {name: _parse_size(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_parse_size(each) for each in value]
    if not isinstance(value, str):
        return value
    if re.fullmatch(r"0x[0-9A-Fa-f]+", value):
        return int(value, 16)
    number, _, unit = value.partition(" ")
    return int(number) * _UNITS[unit] if unit in _UNITS and number.isdecimal() else value
