"""What would make a workload fit: how much is missing where, and the nearest changes, each of them tried.

A fix is one change of the workload or of the cards, together with the host memory that it then takes. Only what was
computed to fit is told; a fix that does what another one does, and more, is not.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations, islice

from winhost.model.units import Bytes, GiB, gib
from winhost.model.workload import Model, Quantization, Room, State, Workload
from winhost.paths.budget import (
    BESIDE_WINDOWS,
    HOST,
    HOST_PER_CARDS,
    PINNED,
    RAM,
    SHARED_WITH_WINDOWS,
    SHM,
    Budget,
    budget,
)
from winhost.paths.engines import Missing, engine

CONTEXT_STEP = 1024  # tokens
MORE_CARDS = 8  # are tried at most
SUBSETS = 64  # of models to put to sleep


class Kind(StrEnum):
    """What is changed; `to` is a number, a size in bytes for memory, or a word for weights."""

    SEQUENCES = "sequences"
    CONTEXT = "context"
    QUANTIZATION = "quantization"
    SLEEP = "sleep"
    SLEEP_LEVEL = "sleep-level"
    TENSOR = "tensor"
    CARDS = "cards"
    SHM = "shm"
    RAM = "ram"
    HOST_RAM = "host-ram"


@dataclass(frozen=True)
class Change:
    """One thing that would be otherwise, of a model or, where that is None, of the room.

    was is None where nobody said it. each: of how many bytes an added card is.
    """

    kind: Kind
    model: str | None
    was: int | str | None
    to: int | str
    each: Bytes | None = None

    @property
    def text(self) -> str:
        """For people."""
        of = f"{self.model}: " if self.model else ""
        return of + _TEXTS[self.kind](self)


@dataclass(frozen=True)
class Fix:
    """Changes that together make it fit."""

    changes: tuple[Change, ...]

    @property
    def text(self) -> str:
        """For people."""
        return "; ".join(change.text for change in self.changes)


@dataclass(frozen=True)
class Shortage:
    """How many bytes are missing in a place; at_least: even if everything takes the least that it may."""

    where: str
    bytes: Bytes
    at_least: Bytes


@dataclass(frozen=True)
class WhatWouldFit:
    """Why a workload does not fit, and what would.

    homeless: models that need more cards than there are; missing: what must be said before anything can be promised.
    """

    short: tuple[Shortage, ...]
    homeless: tuple[str, ...]
    missing: tuple[Missing, ...]
    fixes: tuple[Fix, ...]


def what_would_fit(workload: Workload, room: Room) -> WhatWouldFit:
    """Nothing where it fits; otherwise shortages, and every kind of change that was found to help."""
    now = budget(workload, room)
    short = tuple(
        Shortage(place.where, place.used - place.capacity, max(0, place.least - place.capacity))
        for place in now.places
        if place.capacity is not None and place.used > place.capacity
    )
    fixes = () if now.fits or now.missing else _minimal(_fixes(workload, room))
    return WhatWouldFit(short, now.placement.homeless, now.missing, fixes)


def changed(workload: Workload, room: Room, change: Change) -> tuple[Workload, Room]:
    """Both with the change made."""
    if change.model is not None:
        models = tuple(_with(model, change) if model.name == change.model else model for model in workload.models)
        return replace(workload, models=models), room
    to = int(change.to)
    match change.kind:
        case Kind.CARDS:
            assert change.each is not None
            return workload, replace(room, cards=(*room.cards, *[change.each] * (to - len(room.cards))))
        case Kind.SHM:
            return workload, replace(room, shm=to)
        case Kind.RAM:
            return workload, _with_ram(room, to)
        case Kind.HOST_RAM:
            return workload, replace(room, host_ram=to)
    raise AssertionError(change.kind)


def _with_ram(room: Room, ram: Bytes) -> Room:
    """Where Linux has its own driver, what may be pinned grows with its memory."""
    if room.pinned is None or room.path in SHARED_WITH_WINDOWS:
        return replace(room, ram=ram)
    return replace(room, ram=ram, pinned=max(0, room.pinned + ram - room.ram))


def _with(model: Model, change: Change) -> Model:
    match change.kind:
        case Kind.SEQUENCES:
            return replace(model, sequences=int(change.to))
        case Kind.CONTEXT:
            return replace(model, context=int(change.to))
        case Kind.QUANTIZATION:
            return replace(model, quantization=Quantization(str(change.to)), weights=None)
        case Kind.SLEEP:
            return replace(model, state=State.SLEEPING)
        case Kind.SLEEP_LEVEL:
            return replace(model, sleep_level=int(change.to))
        case Kind.TENSOR:
            return replace(model, tensor=int(change.to))
    raise AssertionError(change.kind)


_TEXTS: dict[Kind, Callable[[Change], str]] = {
    Kind.SEQUENCES: lambda c: f"sequences at once: {c.to:,} instead of {c.was:,}",
    Kind.CONTEXT: lambda c: f"a context of {c.to:,} tokens instead of {c.was:,}",
    Kind.QUANTIZATION: lambda c: f"weights in {c.to}",
    Kind.SLEEP: lambda _: "let it sleep and take turns",
    Kind.SLEEP_LEVEL: lambda c: f"sleep level {c.to}, which keeps no weights in host memory",
    Kind.TENSOR: lambda c: f"spread each layer over {c.to} cards",
    Kind.CARDS: lambda c: f"{c.to} cards instead of {c.was}, each added one of {gib(c.each or 0)}",
    Kind.SHM: lambda c: f"{gib(int(c.to))} of /dev/shm",
    Kind.RAM: lambda c: f"{gib(int(c.to))} of memory for the target instead of {gib(int(c.was or 0))}",
    Kind.HOST_RAM: lambda c: f"{gib(int(c.to))} of memory in the machine instead of {gib(int(c.was or 0))}",
}


# --- Trying ----------------------------------------------------------------------------------------------------------

Changes = tuple[Change, ...]


def _fixes(workload: Workload, room: Room) -> list[Fix]:
    """The cheapest first: nothing but memory, the workload in one or where that fails in several ways, the cards."""
    fixes = _tried(workload, room, [(), *_of_workload(workload, room)])
    if not fixes:
        fixes = _tried(workload, room, _combined(workload, room))
    return fixes + _tried(workload, room, [*_spread(workload, room), *_more_cards(workload, room)])


def _tried(workload: Workload, room: Room, tries: Iterable[Changes]) -> list[Fix]:
    completed = (_completed(workload, room, changes) for changes in tries)
    return [fix for fix in completed if fix is not None and fix.changes]


def _of_workload(workload: Workload, room: Room) -> Iterator[Changes]:
    yield from _fewer(workload, room, Kind.SEQUENCES, 1)
    yield from _fewer(workload, room, Kind.CONTEXT, CONTEXT_STEP)
    yield from _quantized(workload, room)
    yield from _asleep(workload, room)
    yield from _level_two(workload, room)


def _combined(workload: Workload, room: Room) -> Iterator[Changes]:
    """Smaller weights, or sleep, or both, for all models, and then fewer sequences or a shorter context for one."""
    smaller = _all_quantized(workload, Quantization.AWQ)
    asleep = tuple(_sleep(model) for model in workload.models if not model.sleeps)
    starts = (smaller, asleep, (*smaller, *asleep)) if len(workload.models) > 1 else (smaller,)
    for first in dict.fromkeys(starts):
        if first and _cards_hold(workload, room, first):
            yield first
        elif first:
            after = _after(workload, room, first)
            yield from ((*first, *then) for then in _fewer(*after, Kind.SEQUENCES, 1))
            yield from ((*first, *then) for then in _fewer(*after, Kind.CONTEXT, CONTEXT_STEP))


def _fewer(workload: Workload, room: Room, kind: Kind, step: int) -> Iterator[Changes]:
    """For each model the most that the cards can hold, in multiples of `step`."""
    for model in workload.models:
        was = model.sequences if kind is Kind.SEQUENCES else model.context
        if was is None or model.attention is None or model.kv is not None or model.memory is not None:
            continue

        def to(count: int, model: Model = model, was: int = was) -> Changes:
            return (Change(kind, model.name, was, count * step),)

        most = _most((was - 1) // step, lambda count: _cards_hold(workload, room, to(count)))
        if most:
            yield to(most)


def _most(limit: int, holds: Callable[[int], bool]) -> int:
    """The largest count up to the limit that holds, where less always holds too; 0 for none."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _quantized(workload: Workload, room: Room) -> Iterator[Changes]:
    """For each model the largest weights that the cards hold; for all of them where one is not enough."""
    for to in (Quantization.FP8, Quantization.AWQ):
        every = _all_quantized(workload, to)
        found: list[Changes] = [(change,) for change in every if _cards_hold(workload, room, (change,))]
        if found or (every and _cards_hold(workload, room, every)):
            yield from found or [every]
            return


def _all_quantized(workload: Workload, to: Quantization) -> Changes:
    plain = [model for model in workload.models if model.quantization is None and model.embedding and model.parameters]
    return tuple(Change(Kind.QUANTIZATION, model.name, str(model.dtype), str(to)) for model in plain)


def _sleep(model: Model) -> Change:
    return Change(Kind.SLEEP, model.name, str(State.RESIDENT), str(State.SLEEPING))


def _asleep(workload: Workload, room: Room) -> Iterator[Changes]:
    """The fewest resident models that must sleep."""
    resident = [model for model in workload.models if not model.sleeps]
    subsets = (chosen for count in range(1, len(resident) + 1) for chosen in combinations(resident, count))
    fewest = len(resident)
    for chosen in islice(subsets, SUBSETS):
        if len(chosen) > fewest:
            return
        changes = tuple(map(_sleep, chosen))
        if _cards_hold(workload, room, changes):
            fewest = len(chosen)
            yield changes


def _level_two(workload: Workload, room: Room) -> Iterator[Changes]:
    """As many as it takes, those with the largest backup first."""
    backups = [(each.backup.bytes, each.model.name) for each in map(engine, workload.models) if each.backup]
    largest_first = [name for _, name in sorted(backups, key=lambda backup: (-backup[0], backup[1]))]
    for count in range(1, len(largest_first) + 1):
        changes = tuple(Change(Kind.SLEEP_LEVEL, name, 1, 2) for name in largest_first[:count])
        if budget(*_after(workload, room, changes)).fits:
            yield changes
            return


def _spread(workload: Workload, room: Room) -> Iterator[Changes]:
    """For each model the fewest cards that share its layers, with added ones only where there are too few."""
    for model in workload.models:
        if model.memory is not None or model.attention is None:
            continue
        for tensor in _tensor_sizes(model):
            change = Change(Kind.TENSOR, model.name, model.tensor, tensor)
            lacking = tensor * model.pipeline * model.data - len(room.cards)
            changes: Changes = (change, *_added(room, lacking)) if lacking > 0 else (change,)
            if _cards_hold(workload, room, changes):
                yield changes
                break


def _tensor_sizes(model: Model) -> Iterator[int]:
    assert model.attention is not None
    heads = model.attention.kv_heads
    for tensor in (2, 4, 8):
        if tensor > model.tensor and (heads % tensor == 0 or tensor % heads == 0):
            yield tensor


def _more_cards(workload: Workload, room: Room) -> Iterator[Changes]:
    for count in range(1, MORE_CARDS + 1):
        changes = tuple(_added(room, count))
        if changes and _cards_hold(workload, room, changes):
            yield changes
            return


def _added(room: Room, count: int) -> Iterator[Change]:
    """Cards as the largest there is."""
    if room.cards:
        there = len(room.cards)
        yield Change(Kind.CARDS, None, there, there + count, max(room.cards))


# --- Completing ------------------------------------------------------------------------------------------------------


def _after(workload: Workload, room: Room, changes: Sequence[Change]) -> tuple[Workload, Room]:
    for change in changes:
        workload, room = changed(workload, room, change)
    return workload, room


def _cards_hold(workload: Workload, room: Room, changes: Sequence[Change]) -> bool:
    return _holds_on_cards(budget(*_after(workload, room, changes)))


def _holds_on_cards(found: Budget) -> bool:
    return not found.placement.homeless and all(place.fits for place in found.places if place.card is not None)


def _completed(workload: Workload, room: Room, changes: Sequence[Change]) -> Fix | None:
    """With the memory that it takes then; None where the cards do not hold it, or something is still not known."""
    workload, room = _after(workload, room, changes)
    found = budget(workload, room)
    if not _holds_on_cards(found):
        return None
    memory = tuple(_memory(found, room))
    return Fix((*changes, *memory)) if budget(*_after(workload, room, memory)).fits else None


def _memory(found: Budget, room: Room) -> Iterator[Change]:
    """In whole GiB: /dev/shm, what the target gets, what is in the machine."""
    shm = found.at(SHM)
    if shm and not shm.fits:
        yield Change(Kind.SHM, None, room.shm, _whole(shm.used))
    ram = _ram(found, room)
    if ram != room.ram:
        yield Change(Kind.RAM, None, room.ram, ram)
    host = _host_ram(found, room, ram)
    if host > room.host_ram:
        yield Change(Kind.HOST_RAM, None, room.host_ram, host)


def _ram(found: Budget, room: Room) -> Bytes:
    """What the target should get: more where it lacks, less where Windows lacks and it can spare it."""
    ram, pinned, host = found.at(RAM), found.at(PINNED), found.at(HOST)
    assert ram is not None
    least = _whole(max(ram.used, room.ram - (pinned.margin or 0) if pinned else 0))
    if least > room.ram:
        return least
    if host and not host.fits:
        return max(least, room.ram - _whole(host.used - room.host_ram))
    return room.ram


def _host_ram(found: Budget, room: Room, ram: Bytes) -> Bytes:
    if room.path not in BESIDE_WINDOWS:
        return ram
    host, cards = found.at(HOST), found.at(HOST_PER_CARDS)
    assert host is not None
    needed = max(host.used - room.ram + ram, cards.used if cards else 0)
    return _whole(needed) if needed > room.host_ram else room.host_ram


def _whole(n: Bytes) -> Bytes:
    return -(-n // GiB) * GiB


_MEMORY = (Kind.SHM, Kind.RAM, Kind.HOST_RAM)


def _minimal(fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """Without those that do what another does, and more."""
    found = list(dict.fromkeys(fixes))
    return tuple(fix for fix in found if not any(_less(other, fix) for other in found))


def _less(one: Fix, other: Fix) -> bool:
    """Whether the other makes each change of this one, or a larger one of memory."""
    if one == other:
        return False
    to = {(change.kind, change.model): change.to for change in other.changes}
    return all(_within(change, to.get((change.kind, change.model))) for change in one.changes)


def _within(change: Change, to: int | str | None) -> bool:
    return to == change.to or (change.kind in _MEMORY and to is not None and int(to) >= int(change.to))
