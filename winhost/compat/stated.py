"""Facts and versions that a user states: parsed from the command line, and added to the facts of a host."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any, cast

from packaging.version import Version

from winhost.core.answers import NOT_READ, Json, Missing, Record
from winhost.core.dataclass import dataclass
from winhost.model.documents import plain
from winhost.model.errors import UsageError, did_you_mean, visible
from winhost.model.facts import Answer, Facts
from winhost.model.reason import KnownRemedy
from winhost.model.units import Bytes, parse_size
from winhost.resources.base import ResourceType
from winhost.resources.host import HostFacts, WrongState, other_system_error, typed_instance
from winhost.resources.linux.read_only import LinuxGpu, LinuxSystem
from winhost.resources.registry import WINDOWS, is_linux
from winhost.resources.windows.distros import Wsl

_CLIENTS = {
    "home": ("Home", 101, "Core"),
    "pro": ("Pro", 48, "Professional"),
    "workstation": ("Pro for Workstations", 161, "ProfessionalWorkstation"),
    "enterprise": ("Enterprise", 4, "Enterprise"),
    "education": ("Education", 121, "Education"),
}
_SERVERS = {"2016": 14393, "2019": 17763, "2022": 20348, "2025": 26100}  # the build of each server


def _systems() -> Mapping[str, Mapping[str, Json]]:
    found: dict[str, dict[str, Json]] = {}
    for version in ("10", "11"):
        for word, (name, sku, edition) in _CLIENTS.items():
            caption = f"Microsoft Windows {version} {name}"
            found[f"win{version}-{word}"] = {
                "caption": caption,
                "product_type": 1,
                "sku": sku,
                "edition_id": edition,
                "installation_type": "Client",
                "product_options": "WinNT",
            }
    for year, build in _SERVERS.items():
        for name, sku in (("Standard", 7), ("Datacenter", 8)):
            caption = f"Microsoft Windows Server {year} {name}"
            found[f"server{year}-{name.casefold()}"] = {
                "caption": caption,
                "product_type": 3,
                "sku": sku,
                "edition_id": f"Server{name}",
                "build": build,
                "installation_type": "Server",
                "product_options": "ServerNT",
            }
    return found


SYSTEMS = _systems()
_MAX_DIGITS = 18  # digits; Windows counts in 64 bits
_SWITCH = {"on": True, "off": False}


def _choice_parser(choices: Mapping[str, Any]) -> Callable[[str], Any]:
    def chosen(value: str) -> Any:
        if value not in choices:
            raise ValueError(f"'{visible(value)}' is none of: {', '.join(choices)}{did_you_mean(value, choices)}")
        return choices[value]

    return chosen


def _parse_int(value: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) <= _MAX_DIGITS):
        raise ValueError(f"'{visible(value)}' is not a whole number")
    return int(value)


def _parse_bytes(value: str) -> int:
    return _parse_int(value) if value.isascii() and value.isdecimal() else parse_size(value)


def _property_parser(
    resource: str, name: str, read: Callable[[str], Json]
) -> tuple[str, Callable[[str], Mapping[str, Json]]]:
    return resource, lambda value: {name: read(value)}


SHORT_NAMES: Mapping[str, tuple[str, Callable[[str], Mapping[str, Json]]]] = {
    "os": ("OperatingSystem", _choice_parser(SYSTEMS)),
    "build": _property_parser("OperatingSystem", "build", _parse_int),
    "arch": _property_parser("OperatingSystem", "architecture", _choice_parser({"x64": "AMD64", "arm64": "ARM64"})),
    "ram": _property_parser("Memory", "total", _parse_bytes),
    "virtualization": _property_parser("Firmware", "virtualization_enabled", _choice_parser(_SWITCH)),
    "driver-model": _property_parser(
        "PciDevice", "driver_model", _choice_parser({word: word.upper() for word in ("wddm", "tcc", "mcdm")})
    ),
}
"""The facts that have a short name; any other is stated as NOUN.PROPERTY=VALUE."""

_STATEMENT_SEPARATOR = re.compile(r",(?=[A-Za-z][A-Za-z._-]*=)")


@dataclass(frozen=True)
class Statement:
    """A stated fact. text: as the user wrote it; values: by property of the resource."""

    text: str
    resource: str
    values: Mapping[str, Json]


def parse_statements(text: str) -> tuple[Statement, ...]:
    """Parse statements such as `os=win11-pro,ram=128GiB`. Raises ValueError."""
    return tuple(_parse_statement(part.strip()) for part in _STATEMENT_SEPARATOR.split(text))


def _parse_statement(text: str) -> Statement:
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise ValueError(f"'{visible(text)}' is not NAME=VALUE")
    if name in SHORT_NAMES:
        resource, read = SHORT_NAMES[name]
        return _check_type(Statement(text, resource, read(value)))
    resource, _, prop = name.partition(".")
    if resource not in WINDOWS or prop not in _properties(WINDOWS[resource]):
        known = [*SHORT_NAMES, *(f"{each}.{name}" for each in WINDOWS for name in _properties(WINDOWS[each]))]
        raise ValueError(
            f"'{visible(name)}' cannot be stated{did_you_mean(name, known)}; words: {', '.join(SHORT_NAMES)}"
        )
    from winhost.model.yamlfile import parse_value  # with the parser, which words do without

    return _check_type(Statement(text, resource, {prop: parse_value(value)}))


def _properties(resource: ResourceType) -> tuple[str, ...]:
    return tuple(each.name for each in fields(cast(Any, resource.state)))


def _check_type(statement: Statement) -> Statement:
    resource = WINDOWS[statement.resource]
    try:
        typed_instance(resource.state, Record({**_missing_state(resource, NOT_READ), **statement.values}))
    except WrongState as wrong:
        raise ValueError(f"'{visible(statement.text)}': {wrong.faults}") from None
    return statement


def apply_statements(facts: Facts, statements: Iterable[Statement]) -> Facts:
    """Return the facts with the stated values where nothing was read.

    Raises UsageError: Contradicted, NobodyThere, OtherSystem (only facts of Windows can be stated).
    """
    for each in statements:
        if is_linux(facts):
            raise other_system_error(HostFacts(facts), f"stating {each.text}")
        answer = _stated_answer(facts, each)
        facts = replace(facts, resources={**facts.resources, each.resource: answer}, stated=(*facts.stated, each.text))
    return facts


def _stated_answer(facts: Facts, each: Statement) -> Answer:
    resource, answer = WINDOWS[each.resource], facts.answer(each.resource)
    if isinstance(answer, tuple) and answer:
        return tuple(_fill_record(facts.host, each, record) for record in answer)
    if resource.key or isinstance(answer, tuple):
        raise UsageError(
            "NobodyThere",
            what=f"{visible(each.text)} is stated of each {each.resource}, "
            f"and the facts of {visible(facts.host)} list none",
            host=facts.host,
        )
    return (Record({**_missing_state(resource, answer), **each.values}),)


def _missing_state(resource: ResourceType, why: Missing) -> dict[str, Json]:
    """Return a state whose properties are all missing for this reason."""
    return dict.fromkeys(_properties(resource), asdict(why))


def _fill_record(host: str, each: Statement, record: Record) -> Record:
    state = dict(record.state)
    for name, value in each.values.items():
        read = state.get(name)
        if not _is_missing(read) and name in state and read != value:
            fact = f"{each.resource}.{name}"
            raise UsageError(
                "Contradicted",
                what=f"{visible(each.text)} is stated, but {visible(host)} itself says {fact}: {visible(str(read))}",
                hint="What was read takes precedence. Leave this out of --assume, or use other facts.",
                host=host,
            )
        state[name] = value
    return replace(record, state=state)


def _is_missing(value: Json) -> bool:
    return isinstance(value, dict) and set(value) in ({"unknown"}, {"unavailable"})


_GPUS = re.compile(r"([1-9][0-9]?)x(.+)")


def stated_linux(gpus: str, memory: Bytes) -> HostFacts:
    """Return the facts of a Linux with equal GPUs. gpus: such as `2x48GiB`. Raises ValueError."""
    found = _GPUS.fullmatch(gpus)
    if found is None:
        raise ValueError("should be a number of GPUs and the memory of each, such as 2x48GiB")
    vram = parse_size(found[2])
    unknown = plain(NOT_READ)
    system = {**dict.fromkeys(LinuxSystem.__annotations__, unknown), "wsl": False, "memory": memory}
    system["virtualization"] = "not stated"  # so that peer-to-peer access is not assumed
    gpu = {**dict.fromkeys(LinuxGpu.__annotations__, unknown), "device": None, "driver": None}
    gpu |= {"name": "GPU", "vram": vram}
    records = tuple(Record(gpu, {"address": f"0000:{number:02x}:00.0"}) for number in range(1, int(found[1]) + 1))
    resources = {LinuxSystem.resource_type.name: (Record(system),), LinuxGpu.resource_type.name: records}
    return HostFacts(Facts("stated", "synthetic", "", "", resources))


Stated = Mapping[str, Version]


def with_stated_versions(facts: HostFacts, stated: Stated | None) -> HostFacts:
    """Return the facts with the stated versions."""
    if not stated:
        return facts
    key = ("stated", *sorted(stated.items()))
    return facts.cached(key, lambda: facts.updated(with_stated_wsl(facts.document, stated), stated))


def with_stated_wsl(document: Facts, stated: Stated) -> Facts:
    """Return the facts with WSL of the stated version. A stated WSL counts as installed, because it is or will be."""
    wsl, resource = stated.get("wsl"), Wsl.resource_type.name
    if wsl is None or is_linux(document):
        return document
    answer = document.answer(resource)
    read = answer[0].state if isinstance(answer, tuple) and answer else {"present": True}
    return replace(document, resources={**document.resources, resource: (Record({**read, "version": str(wsl)}),)})


def versions_after(stated: Stated | None, remedies: Iterable[KnownRemedy]) -> Stated:
    """Return the stated versions after these remedies. A version that facts contain is changed in the facts; here it is
    only changed where the user stated it.
    """
    changed = dict(stated or {})
    for remedy in remedies:
        new = {name: Version(version) for name, version in remedy.stated.items()}
        changed |= {name: version for name, version in new.items() if name in changed or not remedy.effect}
    return changed
