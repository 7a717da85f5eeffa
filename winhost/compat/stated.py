"""Facts and versions that a user states: as a command line has them, and as rules ask for them."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any, cast

from packaging.version import Version

from winhost.core.answers import NOT_THERE, Json, Missing, Record
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
_SERVERS = {"2016": 14393, "2019": 17763, "2022": 20348, "2025": 26100}  # builds, which tell servers apart


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
_LONGEST = 18  # digits; Windows counts in 64 bits
_SWITCH = {"on": True, "off": False}


def _one_of(choices: Mapping[str, Any]) -> Callable[[str], Any]:
    def chosen(value: str) -> Any:
        if value not in choices:
            raise ValueError(f"'{visible(value)}' is none of: {', '.join(choices)}{did_you_mean(value, choices)}")
        return choices[value]

    return chosen


def _whole(value: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) <= _LONGEST):
        raise ValueError(f"'{visible(value)}' is not a whole number")
    return int(value)


def _size(value: str) -> int:
    return _whole(value) if value.isascii() and value.isdecimal() else parse_size(value)


def _as_property(
    resource: str, name: str, read: Callable[[str], Json]
) -> tuple[str, Callable[[str], Mapping[str, Json]]]:
    return resource, lambda value: {name: read(value)}


WORDS: Mapping[str, tuple[str, Callable[[str], Mapping[str, Json]]]] = {
    "os": ("OperatingSystem", _one_of(SYSTEMS)),
    "build": _as_property("OperatingSystem", "build", _whole),
    "arch": _as_property("OperatingSystem", "architecture", _one_of({"x64": "AMD64", "arm64": "ARM64"})),
    "ram": _as_property("Memory", "total", _size),
    "virtualization": _as_property("Firmware", "virtualization_enabled", _one_of(_SWITCH)),
    "driver-model": _as_property(
        "PciDevice", "driver_model", _one_of({word: word.upper() for word in ("wddm", "tcc", "mcdm")})
    ),
}
"""The facts that have a word of their own; any other is stated as NOUN.PROPERTY=VALUE."""

_EACH = re.compile(r",(?=[A-Za-z][A-Za-z._-]*=)")


@dataclass(frozen=True)
class Statement:
    """word: as the user wrote it; values: by property of the resource."""

    word: str
    resource: str
    values: Mapping[str, Json]


def parse(text: str) -> tuple[Statement, ...]:
    """`os=win11-pro,ram=128GiB`. Raises ValueError."""
    return tuple(_statement(part.strip()) for part in _EACH.split(text))


def _statement(text: str) -> Statement:
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise ValueError(f"'{visible(text)}' is not NAME=VALUE")
    if name in WORDS:
        resource, read = WORDS[name]
        return _checked(Statement(text, resource, read(value)))
    resource, _, prop = name.partition(".")
    if resource not in WINDOWS or prop not in _properties(WINDOWS[resource]):
        known = [*WORDS, *(f"{each}.{name}" for each in WINDOWS for name in _properties(WINDOWS[each]))]
        raise ValueError(f"'{visible(name)}' cannot be stated{did_you_mean(name, known)}; words: {', '.join(WORDS)}")
    from winhost.model.yamlfile import value_of  # with the parser, which words do without

    return _checked(Statement(text, resource, {prop: value_of(value)}))


def _properties(resource: ResourceType) -> tuple[str, ...]:
    return tuple(each.name for each in fields(cast(Any, resource.state)))


def _checked(statement: Statement) -> Statement:
    resource = WINDOWS[statement.resource]
    try:
        typed_instance(resource.state, Record({**_missing(resource, NOT_THERE), **statement.values}))
    except WrongState as wrong:
        raise ValueError(f"'{visible(statement.word)}': {wrong.faults}") from None
    return statement


def stated(facts: Facts, statements: Iterable[Statement]) -> Facts:
    """The facts with what is stated where nothing was read.

    Raises UsageError: Contradicted, NobodyThere, OtherSystem (only of Windows anything can be stated).
    """
    for each in statements:
        if is_linux(facts):
            raise other_system_error(HostFacts(facts), f"stating {each.word}")
        answer = _stated_answer(facts, each)
        facts = replace(facts, resources={**facts.resources, each.resource: answer}, stated=(*facts.stated, each.word))
    return facts


def _stated_answer(facts: Facts, each: Statement) -> Answer:
    resource, answer = WINDOWS[each.resource], facts.answer(each.resource)
    if isinstance(answer, tuple) and answer:
        return tuple(_filled(facts.host, each, record) for record in answer)
    if resource.key or isinstance(answer, tuple):
        raise UsageError(
            "NobodyThere",
            what=f"{visible(each.word)} is stated of each {each.resource}, "
            f"and the facts of {visible(facts.host)} list none",
            host=facts.host,
        )
    return (Record({**_missing(resource, answer), **each.values}),)


def _missing(resource: ResourceType, why: Missing) -> dict[str, Json]:
    """A state of which nothing was read."""
    return dict.fromkeys(_properties(resource), asdict(why))


def _filled(host: str, each: Statement, record: Record) -> Record:
    state = dict(record.state)
    for name, value in each.values.items():
        read = state.get(name)
        if not _is_missing(read) and name in state and read != value:
            fact = f"{each.resource}.{name}"
            raise UsageError(
                "Contradicted",
                what=f"{visible(each.word)} is stated, but {visible(host)} itself says {fact}: {visible(str(read))}",
                hint="What was read takes precedence. Leave this out of --assume, or use other facts.",
                host=host,
            )
        state[name] = value
    return replace(record, state=state)


def _is_missing(value: Json) -> bool:
    return isinstance(value, dict) and set(value) in ({"unknown"}, {"unavailable"})


_GPUS = re.compile(r"([1-9][0-9]?)x(.+)")


def stated_linux(gpus: str, memory: Bytes) -> HostFacts:
    """gpus: as 2x48GiB, all alike. Raises ValueError."""
    found = _GPUS.fullmatch(gpus)
    if found is None:
        raise ValueError("should be a number of GPUs and the memory of each, such as 2x48GiB")
    vram = parse_size(found[2])
    unknown = plain(NOT_THERE)
    system = {**dict.fromkeys(LinuxSystem.__annotations__, unknown), "wsl": False, "memory": memory}
    system["virtualization"] = "nobody said"  # so that GPUs are not taken to reach each other
    gpu = {**dict.fromkeys(LinuxGpu.__annotations__, unknown), "device": None, "driver": None}
    gpu |= {"name": "GPU", "vram": vram}
    records = tuple(Record(gpu, {"address": f"0000:{number:02x}:00.0"}) for number in range(1, int(found[1]) + 1))
    resources = {
        LinuxSystem.resource_type.name: (Record(system),),
        LinuxGpu.resource_type.name: records,
    }
    return HostFacts(Facts("stated", "synthetic", "", "", resources))


Stated = Mapping[str, Version]


def as_stated(facts: HostFacts, stated: Stated | None) -> HostFacts:
    """The facts with the versions that are stated, if any are."""
    if not stated:
        return facts
    key = ("stated", *sorted(stated.items()))
    return facts.cached(key, lambda: facts.updated(with_wsl(facts.document, stated), stated))


def with_wsl(document: Facts, stated: Stated) -> Facts:
    """The facts with WSL of the version that is stated: whoever states it knows what is or will be there."""
    wsl, resource = stated.get("wsl"), Wsl.resource_type.name
    if wsl is None or is_linux(document):
        return document
    answer = document.answer(resource)
    read = answer[0].state if isinstance(answer, tuple) and answer else {"present": True}
    return replace(document, resources={**document.resources, resource: (Record({**read, "version": str(wsl)}),)})


def after(stated: Stated | None, remedies: Iterable[KnownRemedy]) -> Stated:
    """Return the stated versions after these remedies. A version that facts tell is changed in the facts, and here only
    where the user stated it over them.
    """
    changed = dict(stated or {})
    for remedy in remedies:
        told = {name: Version(version) for name, version in remedy.stated.items()}
        changed |= {name: version for name, version in told.items() if name in changed or not remedy.effect}
    return changed
