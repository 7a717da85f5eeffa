"""Host files: complete machines, and small deltas on them. A recorded facts file is a host file, too.

A base has `resources`, a delta has `base` and `change`; both may have `lab`. `change` names resources: it gives the
properties of one without a key, and a list for one with a key. Each entry has `match` (key parts or properties, which
must all agree and fit at least one instance) with `set` or `remove: true`, or it has `add` (an instance). What is
removed goes from all resources with the same key. `{unknown: …}` stands for a resource that cannot be read. Sizes and
addresses may be written as text: `32 GiB`, `0x6000000000`.

A host file says what is there. The machine knows what a session sees of it: no VMs before the role, no ranges of a
dismounted GPU.
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
READ_AT = "2026-01-01T00:00:00Z"  # synthetic hosts were never read; a fixed time keeps outputs comparable

_STATES = {state.resource_type.name: state for state in WINDOWS_STATES}
_UNITS = {"KiB": KiB, "MiB": MiB, "GiB": GiB, "TiB": GiB * 1024}

ResourceStates = dict[str, Any]
"""Resource to its instances as JSON, or to `{unknown: …}`."""


class HostFileInstance(Closed):
    """An instance in the shape of a facts file."""

    key: dict[str, str] = Field(default_factory=dict)
    state: dict[str, JsonValue]


class Edit(Closed):
    """One change to the instances of a resource."""

    match: dict[str, JsonValue] | None = None
    set: dict[str, JsonValue] | None = None
    remove: Literal[True] | None = None
    add: HostFileInstance | None = None

    @model_validator(mode="after")
    def _does_one_thing(self) -> "Edit":
        given = {name for name in ("match", "set", "remove", "add") if getattr(self, name) is not None}
        if given not in ({"match", "set"}, {"match", "remove"}, {"add"}):
            raise ValueError("should be {match, set}, {match, remove: true} or {add}")
        return self


PartsPhysics = create_model(
    "PartsPhysics",
    __base__=Closed,
    **{name: (model, Field(default_factory=model)) for name, model in PART_PHYSICS.items()},  # type: ignore[call-overload]
)


class WrittenLabSection(LabSection):
    """`lab:` as files have it: unknown names of parts, and of their properties, are refused."""

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
    def _is_one_kind(self) -> "HostFile":
        if (self.base is None) == (not self.resources):
            raise ValueError("should have either resources (a complete host) or a base (a delta)")
        if self.base is None and (self.change or self.host is None):
            raise ValueError("a complete host has a host name and no change")
        return self


class RecordedFacts(BaseModel):
    """A facts file, as far as a lab needs to know it."""

    model_config = ConfigDict(extra="allow")

    origin: str = ""  # that it is missing is said with all else that is

    @field_validator("origin")
    @classmethod
    def _is_of_a_host(cls, origin: str) -> str:
        if origin == "imported":
            raise ValueError("is imported: too little to make a twin of; use what `winhost detect -o` wrote")
        return origin


def host_files() -> list[Path]:
    """The shipped host files, by name."""
    return list(example_hosts().values())


def find(name: str) -> Path:
    """The shipped host file of this name, or the path that `name` is. Raises UsageError: UnknownHostFile."""
    path = Path(name)
    if path.suffix and path.is_file():
        return path
    known = example_hosts().get(name)
    if known is None:
        nearest = did_you_mean(name, [path.stem for path in host_files()])
        raise UsageError(
            "UnknownHostFile",
            what=f"there is no host file {name!r}{nearest}",
            hint="Give the path of a host file, or one of these: winhost lab list",
        )
    return known


def expand_all() -> dict[str, tuple[Facts, LabSection]]:
    """All shipped host files, by name. Raises UsageError (FileFaults)."""
    return {path.stem: expand(path) for path in host_files()}


def expand(path: Path) -> tuple[Facts, LabSection]:
    """The facts that a session sees of this host, and what they do not show. Raises UsageError (FileFaults)."""
    if path not in example_hosts().values():
        return _expanded(path)
    facts, lab = _expanded_shipped(path)
    return deepcopy(facts), lab.model_copy(deep=True)


def _expanded(path: Path) -> tuple[Facts, LabSection]:
    if path.suffix == ".json":
        load_json(path, RecordedFacts)
        return read_facts(path), LabSection()
    whole = _Whole(path)
    written, lab = whole.answers(), LabSection.model_validate(whole.lab())
    facts = Machine(Facts(whole.host, "synthetic", READ_AT, __version__, written), lab).facts()
    hidden = {
        resource: tuple({"key": dict(r.key), "state": dict(r.state)} for r in answer)
        for resource, answer in written.items()
        if isinstance(answer, tuple) and not _shows(facts.resources[resource], answer)
    }
    return facts, lab.model_copy(update={"hidden": hidden})


# Nobody writes to the shipped ones while we run; a file of the user's may be another one the next time.
_expanded_shipped = once(_expanded)


def _shows(seen: Answer, written: Answer) -> bool:
    """Tell whether a session sees what the file says; properties that the file leaves out do not count."""
    if not isinstance(seen, tuple) or not isinstance(written, tuple):
        return seen == written
    states = [{name: each.state.get(name) for name in other.state} for each, other in zip(seen, written, strict=False)]
    return [each.key for each in seen] == [each.key for each in written] and states == [each.state for each in written]


class _Whole:
    """A host file with all that it is based on. Raises UsageError (FileFaults)."""

    def __init__(self, path: Path, above: tuple[Path, ...] = ()) -> None:
        self.path = path
        self.loaded: Loaded[HostFile] = load_with_positions(path, HostFile, lambda file: _mistakes(file, path, above))
        file = self.loaded.value
        self.base: _Whole | None = None
        if file.base:
            base, below = _base_of(path, file.base), (*above, path)
            shipped = base in example_hosts().values() and base not in below
            self.base = _shipped_base(base) if shipped else _Whole(base, below)
        self.host: str = file.host or (self.base.host if self.base else "")
        self.resources: ResourceStates = deepcopy(self.base.resources) if self.base else _complete(file)
        refuse_mistakes(path, self._change(file.change), self.loaded.positions)

    def answers(self) -> dict[str, Answer]:
        answers: dict[str, Answer] = {}
        for resource, found in self.resources.items():
            if isinstance(found, Mapping):
                answers[resource] = _unknown().validate_python(found)
            else:
                answers[resource] = tuple(Record(each["state"], each["key"]) for each in found)
        return answers

    def lab(self) -> dict[str, Any]:
        mine = self.loaded.value.lab.model_dump(exclude_unset=True)
        return _merged(self.base.lab(), mine) if self.base else mine

    def _change(self, change: Mapping[str, Any]) -> Iterator[Mistake]:
        for resource, edits in change.items():
            if isinstance(edits, list):
                yield from _edit(self.resources, resource, edits)
            elif "unknown" in edits:
                self.resources[resource] = edits
            else:
                usual = self.resources.setdefault(resource, [{"key": {}, "state": {}}])
                usual[0]["state"] |= _with_numbers(resource, edits)
        for resource in ("resources", "change"):
            for name in getattr(self.loaded.value, resource):
                yield from _state_mistakes((resource, name), name, self.resources[name])


_shipped_base = once(_Whole)  # most of the shipped hosts are deltas on a few: none of these is read twice


def _base_of(path: Path, name: str) -> Path:
    """Look beside the file first, so that a delta may lie anywhere, then among the shipped hosts. Where neither has it,
    return the path beside.
    """
    beside = path.with_name(f"{name}.yaml")
    return beside if beside.is_file() else example_hosts().get(name, beside)


def _mistakes(file: HostFile, path: Path, above: tuple[Path, ...]) -> Iterator[Mistake]:
    """Check what the model alone cannot express."""
    if file.base:
        yield from _base_mistakes(_base_of(path, file.base), (*above, path))
    if file.resources:
        yield from ((("resources",), f"{name} is missing") for name in _to_state() if name not in file.resources)
    for section, given in (("resources", file.resources), ("change", file.change)):
        for resource, value in given.items():
            if problem := _shape_problem(resource, value):
                yield (section, resource), problem


@once
def _to_state() -> list[str]:
    """The resources without a key whose usual state no machine knows."""
    nothing = Machine(Facts("", "synthetic", READ_AT, __version__, {}))
    return sorted(name for name, type_ in WINDOWS.items() if not type_.key and not nothing.instances(name))


def _base_mistakes(base: Path, above: tuple[Path, ...]) -> Iterator[Mistake]:
    if base in above:
        yield ("base",), "is based on itself"
    elif not base.is_file():
        near = did_you_mean(base.stem, [other.stem for other in (*base.parent.glob("*.yaml"), *host_files())])
        yield ("base",), f"there is no host file {base.stem!r} beside this one or among the shipped ones{near}"


def _shape_problem(resource: str, value: object) -> str | None:
    if resource not in WINDOWS:
        return f"is no resource{did_you_mean(resource, WINDOWS)}"
    if isinstance(value, Mapping) and "unknown" in value:
        try:
            _unknown().validate_python(value)
        except ValidationError:
            return "should be {unknown: {category: …}}, perhaps with code, hresults, cmdlet and message"
        return None
    if WINDOWS[resource].key:
        return None if isinstance(value, list) else f"should be a list: {resource} has a key"
    return None if isinstance(value, Mapping) else f"should be a mapping of properties: {resource} has no key"


@once
def _unknown() -> TypeAdapter[Unknown]:
    return TypeAdapter(Unknown)


def _complete(file: HostFile) -> ResourceStates:
    resources: ResourceStates = {}
    for resource, given in file.resources.items():
        if isinstance(given, list):
            resources[resource] = [{"key": each.key, "state": _with_numbers(resource, each.state)} for each in given]
        else:
            known = [{"key": {}, "state": _with_numbers(resource, given)}]
            resources[resource] = given if "unknown" in given else known
    resources.setdefault("AssignableDevice", [_assigned(each) for each in resources.get("PciDevice", ())])
    return resources


def _assigned(instance: Mapping[str, Any]) -> dict[str, Any]:
    assignment = DISABLED if instance["state"].get("problem") == 22 else ENABLED
    return {"key": instance["key"], "state": {"assignment": assignment, "present": True}}


def _edit(resources: ResourceStates, resource: str, edits: list[Edit]) -> Iterator[Mistake]:
    instances: list[dict[str, Any]] = resources.setdefault(resource, [])
    for position, edit in enumerate(edits):
        if edit.add is not None:
            instances.append({"key": edit.add.key, "state": _with_numbers(resource, edit.add.state)})
            if resource == "PciDevice":
                resources["AssignableDevice"].append(_assigned(instances[-1]))
            continue
        found = [each for each in instances if _matches(edit.match or {}, each)]
        if not found:
            yield ("change", resource, position, "match"), f"fits no instance of {resource}"
        for each in found:
            if edit.remove:
                _remove(resources, each["key"])
            else:
                each["state"] |= _with_numbers(resource, edit.set or {})


def _remove(resources: ResourceStates, key: Mapping[str, str]) -> None:
    """Remove the instance from all resources with the same key: they tell of the same thing."""
    for found in resources.values():
        if isinstance(found, list):
            found[:] = [each for each in found if each["key"] != key]


def _matches(desired: Mapping[str, Json], instance: Mapping[str, Any]) -> bool:
    both = {**instance["state"], **instance["key"]}
    return all(name in both and both[name] == value for name, value in desired.items())


def _state_mistakes(loc: Loc, resource: str, found: Any) -> Iterator[Mistake]:
    """Report values that the typed state of the resource refuses."""
    if isinstance(found, Mapping):
        return
    state = _STATES[resource]
    for position, instance in enumerate(found):
        here = (*loc, position) if state.resource_type.key else loc
        if set(instance["key"]) != set(state.resource_type.key):
            yield here, f"should have the key {', '.join(state.resource_type.key)}"
        known = list(state.__annotations__)
        for name in set(instance["state"]) - set(known):
            yield (*here, name), f"is no property of {resource}{did_you_mean(name, known)}"
        try:
            typed_instance(state, Record(instance["state"], instance["key"]))
        except WrongState as wrong:
            yield here, wrong.faults


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings, and replace everything else."""
    result = dict(under)
    for name, value in over.items():
        both = isinstance(value, Mapping) and isinstance(result.get(name), Mapping)
        result[name] = _merged(result[name], value) if both else value
    return result


def _with_numbers(resource: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with numbers for sizes and addresses that were written as text. Properties that hold text stay."""
    return {name: value if name in _texts(resource) else _number(value) for name, value in state.items()}


@once
def _texts(resource: str) -> frozenset[str]:
    hints = get_type_hints(_STATES[resource])
    return frozenset(name for name, hint in hints.items() if str in (hint, *get_args(hint)))


def _number(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value if "unknown" in value else {name: _number(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_number(each) for each in value]
    if not isinstance(value, str):
        return value
    if re.fullmatch(r"0x[0-9A-Fa-f]+", value):
        return int(value, 16)
    number, _, unit = value.partition(" ")
    return int(number) * _UNITS[unit] if unit in _UNITS and number.isdecimal() else value
