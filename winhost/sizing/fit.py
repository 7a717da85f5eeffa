"""What would make a workload fit: how much is missing where, and the nearest changes, each of them tried.

A fix is one change of the workload or of the cards, together with the host memory that it then takes. Only what was
computed to fit is told; a fix that does what another one does, and more, is not. What nobody knows beside it stays
unknown, and is told with the fix: it keeps none from being computed.

The smallest change comes first: settings that cost nothing, then a workload that is a little smaller, then spread,
asleep, much smaller or moved away. Other weights are advice, for they may answer differently; what has to be bought is
last.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from itertools import combinations, islice

from winhost.model.units import Bytes, GiB, gib
from winhost.model.workload import AvailableMemory, Model, ModelState, Quantization, Workload
from winhost.sizing.budget import (
    BESIDE_WINDOWS,
    HOST,
    HOST_PER_CARDS,
    NOT_KNOWN,
    PINNED,
    RAM,
    SHARED_WITH_WINDOWS,
    SHM,
    Budget,
    budget,
)
from winhost.sizing.engines import Missing, engine

PARTS = 64  # in which all models are cut down together, before each gets back what there is room for
TENSOR = (1, 2, 4, 8)  # cards that share a layer
MORE_CARDS = 8  # are tried at most
SUBSETS = 64  # of models to put to sleep


class ChangeKind(StrEnum):
    """What is changed; `to` is a number, a size in bytes for memory, or a word for weights."""

    SEQUENCES = "sequences"
    CONTEXT = "context"
    QUANTIZATION = "quantization"
    SLEEP = "sleep"
    SLEEP_LEVEL = "sleep-level"
    TENSOR = "tensor"
    MOVE = "move"
    CARDS = "cards"
    SHM = "shm"
    RAM = "ram"
    HOST_RAM = "host-ram"


@dataclass(frozen=True)
class FitChange:
    """One thing that would be otherwise, of a model or, where that is None, of the room.

    was is None where nobody said it. each: of how many bytes an added card is.
    """

    kind: ChangeKind
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
    """Changes that together make it fit.

    shows: the arithmetic; unknown: what nobody knows of it even then, so that it fits as far as can be said.
    """

    changes: tuple[FitChange, ...]
    shows: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """For people."""
        return "; ".join(change.text for change in self.changes)

    @property
    def tier(self) -> int:
        """How much it asks for, as the position in TIERS: the most that any of its changes does."""
        return max(map(self._tier, self.changes))

    def _tier(self, change: FitChange) -> int:
        if change.kind in _LESS and self.lost > MOST_LOST:
            return TIERS.index(MUCH_LESS)
        return next(i for i, kinds in enumerate(TIERS) if change.kind in kinds)

    @property
    def lost(self) -> Fraction:
        """Of what a model does, in sequences times context, by the model that loses most."""
        left: defaultdict[str | None, Fraction] = defaultdict(lambda: Fraction(1))
        for change in self.changes:
            if change.kind in _LESS:
                left[change.model] *= Fraction(int(change.to), int(change.was or change.to))
        return 1 - min(left.values(), default=Fraction(1))


_LESS = (ChangeKind.SEQUENCES, ChangeKind.CONTEXT)
MOST_LOST = Fraction(1, 2)  # beyond that, another change is the smaller one
MUCH_LESS: tuple[ChangeKind, ...] = ()  # the place of sequences and contexts that lose more
TIERS: tuple[tuple[ChangeKind, ...], ...] = (
    (ChangeKind.SHM, ChangeKind.RAM),
    _LESS,
    (ChangeKind.TENSOR,),
    (ChangeKind.SLEEP,),
    (ChangeKind.SLEEP_LEVEL,),
    MUCH_LESS,
    (ChangeKind.MOVE,),
    (ChangeKind.QUANTIZATION,),
    (ChangeKind.CARDS, ChangeKind.HOST_RAM),
)
ADVICE = TIERS.index((ChangeKind.QUANTIZATION,))  # from here on it is no smaller change of what is asked for
PURCHASE = ADVICE + 1


@dataclass(frozen=True)
class Shortage:
    """How many bytes are missing in a place; at_least: even if everything takes the least that it may."""

    where: str
    bytes: Bytes
    at_least: Bytes


@dataclass(frozen=True)
class WhatWouldFit:
    """Why a workload does not fit, and what would.

    homeless: models that need more cards than there are; missing: what nobody stated, which counts as nothing; fixes:
    the smallest change first; nearest: the first that takes neither other weights nor a purchase.
    """

    short: tuple[Shortage, ...]
    homeless: tuple[str, ...]
    missing: tuple[Missing, ...]
    fixes: tuple[Fix, ...]
    nearest: Fix | None


def what_would_fit(workload: Workload, room: AvailableMemory) -> WhatWouldFit:
    """Nothing where it fits; otherwise shortages, and every kind of change that was found to help."""
    now = budget(workload, room)
    short = tuple(
        Shortage(place.where, place.used - place.capacity, max(0, place.least - place.capacity))
        for place in now.places
        if place.capacity is not None and place.used > place.capacity
    )
    nothing_known_against_it = now.fits is None and now.missing
    fixes = () if now.fits or nothing_known_against_it else _Search(workload, room, now).fixes()
    nearest = fixes[0] if fixes and fixes[0].tier < ADVICE else None
    return WhatWouldFit(short, now.placement.homeless, now.missing, fixes, nearest)


def applied(workload: Workload, room: AvailableMemory, fix: Fix) -> tuple[Workload, AvailableMemory]:
    """Both with all changes of the fix made."""
    for change in fix.changes:
        workload, room = changed(workload, room, change)
    return workload, room


def changed(workload: Workload, room: AvailableMemory, change: FitChange) -> tuple[Workload, AvailableMemory]:
    """Both with the change made."""
    if change.kind is ChangeKind.MOVE:
        return replace(workload, models=tuple(m for m in workload.models if m.name != change.model)), room
    if change.model is not None:
        models = tuple(_with(model, change) if model.name == change.model else model for model in workload.models)
        return replace(workload, models=models), room
    to = int(change.to)
    match change.kind:
        case ChangeKind.CARDS:
            assert change.each is not None
            return workload, replace(room, cards=(*room.cards, *[change.each] * (to - len(room.cards))))
        case ChangeKind.SHM:
            return workload, replace(room, shm=to)
        case ChangeKind.RAM:
            return workload, _with_ram(room, to)
        case ChangeKind.HOST_RAM:
            return workload, replace(room, host_ram=to)
    raise AssertionError(change.kind)


def _with_ram(room: AvailableMemory, ram: Bytes) -> AvailableMemory:
    """Where Linux has its own driver, what may be pinned grows with its memory."""
    if room.pinned is None or room.path in SHARED_WITH_WINDOWS:
        return replace(room, ram=ram)
    return replace(room, ram=ram, pinned=max(0, room.pinned + ram - room.ram))


def _with(model: Model, change: FitChange) -> Model:
    match change.kind:
        case ChangeKind.SEQUENCES:
            return replace(model, sequences=int(change.to))
        case ChangeKind.CONTEXT:
            return replace(model, context=int(change.to))
        case ChangeKind.QUANTIZATION:
            return replace(model, quantization=Quantization(str(change.to)), weights=None)
        case ChangeKind.SLEEP:
            return replace(model, state=ModelState.SLEEPING)
        case ChangeKind.SLEEP_LEVEL:
            return replace(model, sleep_level=int(change.to))
        case ChangeKind.TENSOR:
            return replace(model, tensor=int(change.to))
    raise AssertionError(change.kind)


STEP = {ChangeKind.SEQUENCES: 1, ChangeKind.CONTEXT: 1024}  # sequences, tokens

_TEXTS: dict[ChangeKind, Callable[[FitChange], str]] = {
    ChangeKind.SEQUENCES: lambda c: f"sequences at once: {c.to:,} instead of {c.was:,}",
    ChangeKind.CONTEXT: lambda c: f"a context of {c.to:,} tokens instead of {c.was:,}",
    ChangeKind.QUANTIZATION: lambda c: f"weights in {c.to}",
    ChangeKind.SLEEP: lambda _: "let it sleep and take turns",
    ChangeKind.SLEEP_LEVEL: lambda c: f"sleep level {c.to}, which keeps no weights in host memory",
    ChangeKind.TENSOR: lambda c: f"spread each layer over {c.to} cards",
    ChangeKind.MOVE: lambda _: "serve it on another machine",
    ChangeKind.CARDS: lambda c: f"{c.to} cards instead of {c.was}, each added one of {gib(c.each or 0)}",
    ChangeKind.SHM: lambda c: f"{gib(int(c.to))} of /dev/shm",
    ChangeKind.RAM: lambda c: f"{gib(int(c.to))} of memory for the target instead of {gib(int(c.was or 0))}",
    ChangeKind.HOST_RAM: lambda c: f"{gib(int(c.to))} of memory in the machine instead of {gib(int(c.was or 0))}",
}


# --- Trying ----------------------------------------------------------------------------------------------------------

Changes = tuple[FitChange, ...]


class _Search:
    """All that is tried for one workload in one room."""

    def __init__(self, workload: Workload, room: AvailableMemory, now: Budget) -> None:
        self.workload = workload
        self.room = room
        self.now = now

    def fixes(self) -> tuple[Fix, ...]:
        """The smallest change first."""
        found = self._tried([(), *self._of_workload()])
        if not any(change.kind in _LESS for fix in found for change in fix.changes):
            found += self._tried(self._together())
        if not any(fix.tier < PURCHASE for fix in found):
            found += self._tried(self._combined())
        found += self._tried(self._more_cards())
        return tuple(sorted(_minimal(found), key=lambda fix: (fix.tier, len(fix.changes), fix.lost)))

    def _tried(self, tries: Iterable[Changes]) -> list[Fix]:
        completed = (self._completed(changes) for changes in tries)
        return [fix for fix in completed if fix is not None and fix.changes]

    def _of_workload(self) -> Iterator[Changes]:
        yield from self._fewer((), ChangeKind.SEQUENCES)
        yield from self._fewer((), ChangeKind.CONTEXT)
        yield from self._quantized()
        yield from self._asleep()
        yield from self._level_two()
        yield from self._spread()
        yield from self._elsewhere()

    def _together(self) -> Iterator[Changes]:
        """Less of all models, where less of one is not enough: of what they do at once, of length, of both."""
        yield from self._less_of_all((), ChangeKind.SEQUENCES)
        yield from self._less_of_all((), ChangeKind.CONTEXT)
        one = tuple(
            _less(model, ChangeKind.SEQUENCES, 1)
            for model in self.workload.models
            if _steps(model, ChangeKind.SEQUENCES)
        )
        for both in self._less_of_all(one, ChangeKind.CONTEXT) if one else ():
            yield from self._less_of_all(both[len(one) :], ChangeKind.SEQUENCES)

    def _combined(self) -> Iterator[Changes]:
        """Smaller weights, or sleep, or both, for all models, and then fewer sequences or a shorter context for one."""
        smaller = self._all_quantized(Quantization.AWQ)
        asleep = tuple(_sleep(model) for model in self.workload.models if not model.sleeps)
        starts = (smaller, asleep, (*smaller, *asleep)) if len(self.workload.models) > 1 else (smaller,)
        for first in dict.fromkeys(starts):
            if first and self._cards_hold(first):
                yield first
            elif first:
                yield from self._fewer(first, ChangeKind.SEQUENCES)
                yield from self._fewer(first, ChangeKind.CONTEXT)

    def _fewer(self, first: Changes, kind: ChangeKind) -> Iterator[Changes]:
        """For each model the most that the cards can hold, in multiples of its step."""
        for model in self.workload.models:
            most = _most(_steps(model, kind), lambda n, m=model: self._cards_hold((*first, _less(m, kind, n))))  # type: ignore[misc]
            if most:
                yield (*first, _less(model, kind, most))

    def _less_of_all(self, first: Changes, kind: ChangeKind) -> Iterator[Changes]:
        """The same part of each model's, and then of each as much more as there is room for."""
        models = [model for model in self.workload.models if _steps(model, kind)]

        def changes(counts: Mapping[str, int]) -> Changes:
            return (*first, *(_less(m, kind, counts[m.name]) for m in models if counts[m.name] <= _steps(m, kind)))

        def part(n: int) -> dict[str, int]:
            return {model.name: max(1, _steps(model, kind) * (n - 1) // PARTS) for model in models}

        most = _most(PARTS + 1, lambda n: self._cards_hold(changes(part(n)))) if models else 0
        if not most:
            return
        counts = part(most)
        for model in models:
            name, floor = model.name, counts[model.name]
            more = _most(
                _steps(model, kind) + 1 - floor,
                lambda n, name=name, floor=floor: self._cards_hold(changes({**counts, name: floor + n})),  # type: ignore[misc]
            )
            counts[name] = floor + more
        yield changes(counts)

    def _quantized(self) -> Iterator[Changes]:
        """For each model the largest weights that the cards hold; for all of them where one is not enough."""
        for to in (Quantization.FP8, Quantization.AWQ):
            every = self._all_quantized(to)
            found: list[Changes] = [(change,) for change in every if self._cards_hold((change,))]
            if found or (every and self._cards_hold(every)):
                yield from found or [every]
                return

    def _all_quantized(self, to: Quantization) -> Changes:
        plain = [m for m in self.workload.models if m.quantization is None and m.embedding and m.parameters]
        return tuple(FitChange(ChangeKind.QUANTIZATION, model.name, str(model.dtype), str(to)) for model in plain)

    def _asleep(self) -> Iterator[Changes]:
        """The fewest resident models that must sleep."""
        resident = [model for model in self.workload.models if not model.sleeps]
        yield from self._fewest([_sleep(model) for model in resident], len(resident))

    def _elsewhere(self) -> Iterator[Changes]:
        """The fewest models that must go to another machine, so that one at least stays."""
        moves = [FitChange(ChangeKind.MOVE, model.name, None, "another machine") for model in self.workload.models]
        yield from self._fewest(moves, len(moves) - 1)

    def _fewest(self, changes: Sequence[FitChange], most: int) -> Iterator[Changes]:
        subsets = (chosen for count in range(1, most + 1) for chosen in combinations(changes, count))
        fewest = most
        for chosen in islice(subsets, SUBSETS):
            if len(chosen) > fewest:
                return
            if self._cards_hold(chosen):
                fewest = len(chosen)
                yield chosen

    def _level_two(self) -> Iterator[Changes]:
        """As many as it takes, those with the largest backup first."""
        backups = [(each.backup.bytes, each.model.name) for each in map(engine, self.workload.models) if each.backup]
        largest_first = [name for _, name in sorted(backups, key=lambda backup: (-backup[0], backup[1]))]
        for count in range(1, len(largest_first) + 1):
            changes = tuple(FitChange(ChangeKind.SLEEP_LEVEL, name, 1, 2) for name in largest_first[:count])
            if _as_good_as(budget(*self._after(changes)), self.now):
                yield changes
                return

    def _spread(self) -> Iterator[Changes]:
        """For each model the number of cards that share its layers: of those that there are, else with added ones."""
        for model in self.workload.models:
            if model.memory is not None or model.attention is None:
                continue
            tries = [self._over(model, tensor) for tensor in _tensor_sizes(model)]
            enough = [changes for changes in tries if len(changes) == 1]
            for changes in (*enough, *(changes for changes in tries if changes not in enough)):
                if self._cards_hold(changes):
                    yield changes
                    break

    def _over(self, model: Model, tensor: int) -> Changes:
        change = FitChange(ChangeKind.TENSOR, model.name, model.tensor, tensor)
        lacking = tensor * model.pipeline * model.data - len(self.room.cards)
        return (change, *_added(self.room, lacking)) if lacking > 0 else (change,)

    def _more_cards(self) -> Iterator[Changes]:
        for count in range(1, MORE_CARDS + 1):
            changes = tuple(_added(self.room, count))
            if changes and self._cards_hold(changes):
                yield changes
                return

    def _after(self, changes: Sequence[FitChange]) -> tuple[Workload, AvailableMemory]:
        workload, room = self.workload, self.room
        for change in changes:
            workload, room = changed(workload, room, change)
        return workload, room

    def _cards_hold(self, changes: Sequence[FitChange]) -> bool:
        return _holds_on_cards(budget(*self._after(changes)), self.now)

    def _completed(self, changes: Sequence[FitChange]) -> Fix | None:
        """With the memory that it takes then; None where the cards do not hold it, or memory cannot help."""
        workload, room = self._after(changes)
        found = budget(workload, room)
        if not _holds_on_cards(found, self.now):
            return None
        every = (*changes, *_memory(found, room))
        after = budget(*self._after(every))
        if not _as_good_as(after, self.now):
            return None
        return Fix(every, tuple(_arithmetic(self.now, after)), tuple(not_known(after)))


def _steps(model: Model, kind: ChangeKind) -> int:
    """How many steps there are below what is asked for; 0 where less of it does not help, or is not known to."""
    if model.attention is None or model.kv is not None or model.memory is not None:
        return 0
    was = model.sequences if kind is ChangeKind.SEQUENCES else model.context
    return (was - 1) // STEP[kind] if was else 0


def _less(model: Model, kind: ChangeKind, steps: int) -> FitChange:
    was = model.sequences if kind is ChangeKind.SEQUENCES else model.context
    return FitChange(kind, model.name, was, steps * STEP[kind])


def _most(limit: int, holds: Callable[[int], bool]) -> int:
    """The largest count up to the limit that holds, where less always holds too; 0 for none."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _sleep(model: Model) -> FitChange:
    return FitChange(ChangeKind.SLEEP, model.name, str(ModelState.RESIDENT), str(ModelState.SLEEPING))


def _tensor_sizes(model: Model) -> Iterator[int]:
    """The next larger ones first, then the next smaller ones."""
    assert model.attention is not None
    heads, larger = model.attention.kv_heads, [size for size in TENSOR if size > model.tensor]
    for tensor in (*larger, *(size for size in reversed(TENSOR) if size < model.tensor)):
        if heads % tensor == 0 or tensor % heads == 0:
            yield tensor


def _added(room: AvailableMemory, count: int) -> Iterator[FitChange]:
    """Cards as the largest there is."""
    if room.cards:
        there = len(room.cards)
        yield FitChange(ChangeKind.CARDS, None, there, there + count, max(room.cards))


# --- Judging ---------------------------------------------------------------------------------------------------------


def _holds_on_cards(found: Budget, now: Budget) -> bool:
    """Where something is known not to fit, what is not known does not hold up a fix; else it must settle it."""
    cards = [place.fits for place in found.places if place.card is not None]
    known = now.fits is False
    return found.placement.fits and all(fits if not known else fits is not False for fits in cards)


def _as_good_as(found: Budget, now: Budget) -> bool:
    """Fits; or, where it was known not to, at least as far as anybody knows."""
    return found.fits is True or (now.fits is False and found.fits is None and found.placement.fits)


def not_known(found: Budget) -> Iterator[str]:
    """What keeps it from being said to fit."""
    for lack in found.missing:
        yield f"{lack.model}: {lack.what}" if lack.model else lack.what
    yield from dict.fromkeys(place.how.removesuffix(NOT_KNOWN) for place in found.places if place.capacity is None)


def _arithmetic(now: Budget, after: Budget) -> Iterator[str]:
    """What was short, as it is then, and the lines there that changed; the same on several cards is told once."""
    told: defaultdict[str, list[str]] = defaultdict(list)
    for where, text in _changes_in_full_places(now, after):
        told[text].append(where)
    yield from (f"{', '.join(places)}: {text}" for text, places in told.items())


def _changes_in_full_places(now: Budget, after: Budget) -> Iterator[tuple[str, str]]:
    full = {place.where for place in now.places if place.fits is False}
    before = {(line.where, line.model, line.what): line.bytes for line in now.lines if line.where in full}
    for line in after.lines:
        was = before.get((line.where, line.model, line.what))
        if was is not None and was != line.bytes:
            yield line.where, f"{line.what} {gib(line.bytes)} instead of {gib(was)} ({line.how})"
    for place in after.places:
        if place.where in full and place.capacity is not None:
            yield place.where, f"{gib(place.used)} of {gib(place.capacity)}"


# --- Completing ------------------------------------------------------------------------------------------------------


def _memory(found: Budget, room: AvailableMemory) -> Iterator[FitChange]:
    """In whole GiB: /dev/shm, what the target gets, what is in the machine."""
    shm = found.at(SHM)
    if shm and not shm.fits:
        yield FitChange(ChangeKind.SHM, None, room.shm, _whole(shm.used))
    ram = _ram(found, room)
    if ram != room.ram:
        yield FitChange(ChangeKind.RAM, None, room.ram, ram)
    host = _host_ram(found, room, ram)
    if host > room.host_ram:
        yield FitChange(ChangeKind.HOST_RAM, None, room.host_ram, host)


def _ram(found: Budget, room: AvailableMemory) -> Bytes:
    """What the target should get: more where it lacks, less where Windows lacks and it can spare it."""
    ram, pinned, host = found.at(RAM), found.at(PINNED), found.at(HOST)
    assert ram is not None
    least = _whole(max(ram.used, room.ram - (pinned.margin or 0) if pinned else 0))
    if least > room.ram:
        return least
    if host and not host.fits:
        return max(least, room.ram - _whole(host.used - room.host_ram))
    return room.ram


def _host_ram(found: Budget, room: AvailableMemory, ram: Bytes) -> Bytes:
    if room.path not in BESIDE_WINDOWS:
        return ram
    host, cards = found.at(HOST), found.at(HOST_PER_CARDS)
    assert host is not None
    needed = max(host.used - room.ram + ram, cards.used if cards else 0)
    return _whole(needed) if needed > room.host_ram else room.host_ram


def _whole(n: Bytes) -> Bytes:
    return -(-n // GiB) * GiB


_MEMORY = (ChangeKind.SHM, ChangeKind.RAM, ChangeKind.HOST_RAM)


def _minimal(fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """Without those that do what another does, and more."""
    found = list(dict.fromkeys(fixes))
    return tuple(fix for fix in found if not any(_does_less(other, fix) for other in found))


def _does_less(one: Fix, other: Fix) -> bool:
    """Whether the other makes each change of this one, or a larger one of memory."""
    if one == other:
        return False
    to = {(change.kind, change.model): change.to for change in other.changes}
    return all(_within(change, to.get((change.kind, change.model))) for change in one.changes)


def _within(change: FitChange, to: int | str | None) -> bool:
    return to == change.to or (change.kind in _MEMORY and to is not None and int(to) >= int(change.to))
