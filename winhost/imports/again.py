"""An import into a file that has facts of an earlier import of the same machine.

What the newer files tell replaces what the older ones told; what they do not tell stays. Both are named, so that
nothing goes without a word.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from winhost.core.answers import Json, Record
from winhost.core.dataclass import dataclass
from winhost.imports.merge import IDENTITY, ORIGIN
from winhost.model.errors import UsageError, visible
from winhost.model.facts import Facts
from winhost.resources.windows.pci_device import PciDevice

_SYSTEM = "OperatingSystem"
_GPUS = PciDevice.resource_type.name
_REPLACE = "Name another file with -o, or replace this one with --force."


@dataclass(eq=False)
class Joined:
    """Facts of two imports. kept: facts of the older one alone; replaced: a sentence for each that is gone."""

    facts: Facts
    kept: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)


def refuse_others(file: str, older: Facts, newer: Facts) -> None:
    """Raises UsageError: NotReplaced where the file has facts that are no import, OfAnotherMachine of another host."""
    if older.origin != ORIGIN:
        what = "what the host itself answered" if older.origin == "recorded" else "facts of a simulated host"
        raise UsageError(
            "NotReplaced",
            what=f"{visible(file)} has {what} ({visible(older.host)}, {older.read_at}), "
            "which an import does not replace",
            meaning="Nothing was written.",
            hint=_REPLACE,
        )
    names = [("name", older.host, newer.host)]
    names += [(name, _identity(older, name), _identity(newer, name)) for name in IDENTITY]
    for name, one, other in names:
        if one and other and one.casefold() != other.casefold():
            raise UsageError(
                "OfAnotherMachine",
                what=f"{visible(file)} has facts of another machine: its {name} is {visible(one)}, not "
                f"{visible(other)}",
                meaning="Nothing was written.",
                hint=_REPLACE,
            )


def _identity(facts: Facts, name: str) -> str:
    answer = facts.answer(_SYSTEM)
    value = answer[0].state.get(name) if isinstance(answer, tuple) and answer else None
    return value if isinstance(value, str) else ""


def joined(older: Facts, newer: Facts) -> Joined:
    """Join two imports of one machine."""
    result = Joined(newer)
    resources = dict(newer.resources)
    for resource, before in older.resources.items():
        after = newer.answer(resource)
        if not isinstance(before, tuple):
            continue
        if isinstance(after, tuple):
            resources[resource] = tuple(_records(resource, before, after, result))
        else:
            resources[resource] = before
            result.kept.append(resource)
    version, _, kinds = newer.winhost.partition(", from ")
    all_kinds = dict.fromkeys((*older.winhost.partition(", from ")[2].split(", "), *kinds.split(", ")))
    result.facts = replace(
        newer,
        resources=resources,
        winhost=f"{version}, from {', '.join(filter(None, all_kinds))}",
        measured=newer.measured or older.measured,
    )
    return result


def _records(resource: str, before: Sequence[Record], after: Sequence[Record], result: Joined) -> Iterable[Record]:
    pairs = [(record, next((each for each in before if _same(each, record)), None)) for record in after]
    met = [old for _, old in pairs if old]
    gone = [old for old in before if old not in met]
    # GPUs that no place ties to those of before may be the same ones: both lists together would count them twice.
    if resource == _GPUS and gone and len(met) < len(after):
        names = ", ".join(_called(resource, each) for each in before)
        result.replaced.append(f"the GPUs of the earlier import ({names}), as these files list them in other places")
        yield from after
        return
    for record, old in pairs:
        yield _record(resource, old, record, result) if old else record
    result.kept += [_called(resource, each) for each in gone]
    yield from gone


def _same(one: Record, other: Record) -> bool:
    """The same key; a GPU is the same at one location, if one listing has less of its ids."""
    keys = [{**each.key} for each in (one, other)]
    ids = [key.pop("device", "") for key in keys]
    return keys[0] == keys[1] and (ids[0].startswith(ids[1]) or ids[1].startswith(ids[0]))


def _record(resource: str, old: Record, new: Record, result: Joined) -> Record:
    state = dict(new.state)
    for name, value in old.state.items():
        fact = f"{_called(resource, new)}.{name}"
        if _missing(value) or state.get(name) == value:
            continue
        if _missing(state.get(name, {"unknown": None})):
            state[name] = value
            result.kept.append(fact)
        else:
            result.replaced.append(f"{fact}: {_short(value)} is now {_short(state[name])}")
    return Record(state, max((old.key, new.key), key=lambda key: len(str(key.get("device", "")))))


def _missing(value: Json) -> bool:
    return isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in ("unknown", "unavailable")


def _called(resource: str, record: Record) -> str:
    place = record.key.get("location") or " ".join(record.key.values())
    return visible(f"{resource} {place}".strip())


def _short(value: Json) -> str:
    text = visible(str(value))
    return text if len(text) <= 60 else f"{text[:60]}…"
