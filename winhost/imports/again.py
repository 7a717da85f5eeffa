"""Import into a file that has facts of an earlier import of the same machine.

Values in the newer files replace those of the older ones; values that only the older ones have stay. Both are reported,
so that nothing changes silently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from itertools import count

from winhost.core.answers import Json, Record, Unknown, identity
from winhost.core.dataclass import dataclass
from winhost.imports.merge import IDENTITY, NOT_READ, ORIGIN, UNPLACED, unknown, unplaced_location
from winhost.model.errors import UsageError, visible
from winhost.model.facts import Facts
from winhost.resources.windows.pci_device import PciDevice

_SYSTEM = "OperatingSystem"
_GPUS = PciDevice.resource_type.name
_WORSE_LOCATIONS = f"PCIBUS {UNPLACED}"  # than location paths, from better to worse
_UNREPORTED = asdict(unknown(NOT_READ))
_REPLACE = "Name another file with -o, or replace this one with --force."


@dataclass(eq=False)
class Joined:
    """The facts of two imports. kept: names of facts that only the older import has; replaced: a sentence for each
    changed fact.
    """

    facts: Facts
    kept: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)


def refuse_others(file: str, older: Facts, newer: Facts) -> None:
    """Check the existing file. Raises UsageError: NotReplaced if its facts were not imported, OfAnotherMachine if they
    are of another host.
    """
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
                hint=f"If it is the same one, add --host {visible(one)}. {_REPLACE}" if name == "name" else _REPLACE,
            )


def _identity(facts: Facts, name: str) -> str:
    answer = facts.answer(_SYSTEM)
    value = answer[0].state.get(name) if isinstance(answer, tuple) and answer else None
    return value if isinstance(value, str) else ""


def join_imports(older: Facts, newer: Facts) -> Joined:
    """Join two imports of one machine."""
    result = Joined(newer)
    resources = dict(newer.resources)
    for resource, before in older.resources.items():
        after = newer.answer(resource)
        if not isinstance(before, tuple):
            if isinstance(after, Unknown) and after.unknown.message == NOT_READ:
                resources[resource] = before  # it has the better reason
        elif isinstance(after, tuple):
            resources[resource] = _records(resource, before, after, result)
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


def _records(resource: str, before: Sequence[Record], after: Sequence[Record], result: Joined) -> tuple[Record, ...]:
    if resource == _GPUS:
        earlier = _gpus_before(before, after)
    else:
        by_key = {identity(resource, each.key): each for each in reversed(before)}
        earlier = [by_key.get(identity(resource, each.key)) for each in after]
    matched = [old for old in earlier if old]
    missing = [old for old in before if not any(old is each for each in matched)]
    # GPUs that nothing ties to those of before may be the same ones: both lists together would count them twice.
    if resource == _GPUS and missing and len(matched) < len(after):
        names = ", ".join(_name_of(resource, each) for each in before)
        result.replaced.append(f"the GPUs of the earlier import ({names}), as nothing ties these files' GPUs to them")
        joined = [*after]
    else:
        pairs = zip(after, earlier, strict=True)
        joined = [_record(resource, old, record, result) if old else record for record, old in pairs] + missing
        result.kept += [_name_of(resource, each) for each in missing]
    if resource != _GPUS:
        return tuple(joined)
    numbers = count(1)  # those of two listings have the same numbers
    return tuple(
        replace(each, key={**each.key, "location": unplaced_location(next(numbers))}) if _unplaced(each) else each
        for each in joined
    )


def _gpus_before(before: Sequence[Record], after: Sequence[Record]) -> list[Record | None]:
    """Find each GPU among those of before: by its location, or if their locations cannot be compared, by its ids or
    name, as long as it does not matter which of several alike it is.
    """
    earlier = [next((old for old in before if _share_location(old, each)), None) for each in after]
    free = [each for each in before if not any(each is old for old in earlier)]
    unmatched = [number for number, old in enumerate(earlier) if old is None]
    for number in unmatched:
        alike = [each for each in free if _alike(each, after[number])]
        others = [each for each in unmatched if alike and _alike(alike[0], after[each])]
        if alike and len(alike) == len(others) and all(each.state == alike[0].state for each in alike):
            earlier[number] = alike[others.index(number)]
    return earlier


def _share_location(one: Record, other: Record) -> bool:
    """Tell whether both have the same location or Windows instance. Numbers of GPUs without a location do not count."""
    instances = [each.state.get("instance") for each in (one, other)]
    shares_location = not _unplaced(one) and one.key["location"] == other.key["location"]
    return _ids_agree(one, other) and (
        shares_location or (isinstance(instances[0], str) and instances[0] == instances[1])
    )


def _alike(one: Record, other: Record) -> bool:
    if (_kind_of_location(one) == _kind_of_location(other) and not _unplaced(one)) or not _ids_agree(one, other):
        return False
    named = [each.state.get("name") for each in (one, other)]
    return bool(one.key["device"] and other.key["device"]) or named[0] == named[1]


def _ids_agree(one: Record, other: Record) -> bool:
    """Compare ids as far as both listings have them."""
    ids = one.key["device"], other.key["device"]
    return ids[0].startswith(ids[1]) or ids[1].startswith(ids[0])


def _unplaced(gpu: Record) -> bool:
    return _kind_of_location(gpu) == UNPLACED


def _kind_of_location(gpu: Record) -> str:
    return gpu.key["location"].partition("(")[0]


def _record(resource: str, old: Record, new: Record, result: Joined) -> Record:
    state = dict(new.state)
    for name, value in old.state.items():
        fact = f"{_name_of(resource, new)}.{name}"
        if state.get(name) == value:
            continue
        if _missing(value):
            if state.get(name) == _UNREPORTED:
                state[name] = value  # it has the better reason
        elif _missing(state.get(name, _UNREPORTED)):
            state[name] = value
            result.kept.append(fact)
        else:
            result.replaced.append(f"{fact}: {_short(value)} is now {_short(state[name])}")
    if resource != _GPUS:
        return Record(state, new.key)
    placed = min(new, old, key=lambda each: _WORSE_LOCATIONS.find(_kind_of_location(each)))
    return Record(
        state, {"location": placed.key["location"], "device": max(old.key["device"], new.key["device"], key=len)}
    )


def _missing(value: Json) -> bool:
    return isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in ("unknown", "unavailable")


def _name_of(resource: str, record: Record) -> str:
    called, name = record.key.get("location") or " ".join(record.key.values()), record.state.get("name")
    if resource == _GPUS and _unplaced(record) and isinstance(name, str):
        called = name
    return visible(f"{resource} {called}".strip())


def _short(value: Json) -> str:
    text = visible(str(value))
    return text if len(text) <= 60 else f"{text[:60]}…"
