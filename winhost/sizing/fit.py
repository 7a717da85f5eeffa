"""Find what makes a workload fit: how much memory is missing where, and the nearest changes, each of them tried.

A fix is one change of the workload or of the GPUs, together with the host memory that it then takes. Only fixes that
were computed to fit are returned, and none that contains another. Unknown values do not rule a fix out: they are
listed with it.

The smallest change comes first: settings that cost nothing, then a workload that is a little smaller, then spread,
asleep, much smaller or moved away. Other weights are advice, for they may answer differently; what has to be bought is
last.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, islice

from winhost.core.dataclass import dataclass
from winhost.model.path import AvailableMemory
from winhost.model.units import Bytes, GiB, gib
from winhost.model.workload import Model, ModelState, Quantization, Workload
from winhost.sizing.budget import Budget, budget
from winhost.sizing.engines import Missing, engine
from winhost.sizing.fit_changes import ADVICE, LESS, PURCHASE, STEP, ChangeKind, FitChange, Fix, applied, minimal
from winhost.sizing.memories import ALONGSIDE_WINDOWS, HOST, HOST_PER_GPUS, PINNED, RAM, SHM

PARTS = 64  # steps in which all models are reduced together, before each gets back what still fits
TENSOR = (1, 2, 4, 8)  # GPUs that share a layer
MORE_GPUS = 8  # are tried at most
SUBSETS = 64  # of models to put to sleep
Changes = tuple[FitChange, ...]


@dataclass(frozen=True)
class Shortage:
    """The bytes that a memory lacks. at_least: even if everything takes its least."""

    where: str
    bytes: Bytes
    at_least: Bytes


@dataclass(frozen=True)
class WhatWouldFit:
    """Why a workload does not fit, and what would.

    homeless: models that need more GPUs than there are; missing: values that were not stated, counted as zero; fixes:
    the smallest change first; nearest: the first that takes neither other weights nor a purchase.
    """

    short: tuple[Shortage, ...]
    homeless: tuple[str, ...]
    missing: tuple[Missing, ...]
    fixes: tuple[Fix, ...]
    nearest: Fix | None


def what_would_fit(workload: Workload, available_memory: AvailableMemory) -> WhatWouldFit:
    """Shortages and the fixes found; none of either where the workload fits."""
    now = budget(workload, available_memory)
    short = tuple(
        Shortage(memory.where, memory.used - memory.capacity, max(0, memory.least - memory.capacity))
        for memory in now.memories
        if memory.capacity is not None and memory.used > memory.capacity
    )
    nothing_known_against_it = now.fits is None and now.missing
    fixes = () if now.fits or nothing_known_against_it else _FixSearch(workload, available_memory, now).fixes()
    nearest = fixes[0] if fixes and fixes[0].tier < ADVICE else None
    return WhatWouldFit(short, now.placement.homeless, now.missing, fixes, nearest)


class _FixSearch:
    """All changes that are tried for one workload and its available memory."""

    def __init__(self, workload: Workload, available_memory: AvailableMemory, now: Budget) -> None:
        self.workload = workload
        self.available_memory = available_memory
        self.now = now

    def fixes(self) -> tuple[Fix, ...]:
        """Find the fixes, the smallest change first."""
        found = self._tried([(), *self._of_workload()])
        if not any(change.kind in LESS for fix in found for change in fix.changes):
            found += self._tried(self._together())
        if not any(fix.tier < PURCHASE for fix in found):
            found += self._tried(self._combined())
        found += self._tried(self._more_gpus())
        return tuple(sorted(minimal(found), key=lambda fix: (fix.tier, len(fix.changes), fix.lost)))

    def _tried(self, tries: Iterable[Changes]) -> list[Fix]:
        completed = (self._completed(changes) for changes in tries)
        return [fix for fix in completed if fix is not None and fix.changes]

    def _of_workload(self) -> Iterator[Changes]:
        yield from self._fewer((), ChangeKind.SEQUENCES)
        yield from self._fewer((), ChangeKind.CONTEXT)
        yield from self._quantized()
        yield from self._fewest([*map(_sleep, self._may_sleep)], len(self._may_sleep))
        # A model without a level is stopped between its turns where it cannot sleep.
        stated = [each for each in self.workload.models if each.sleep_level is not None]
        yield from self._at_level(2, self.workload.models) or self._at_level(0, stated)
        yield from self._spread()
        # One model at least stays on this machine.
        moves = [FitChange(ChangeKind.MOVE, model.name, None, "another machine") for model in self._of_file]
        yield from self._fewest(moves, len(moves) - 1)

    def _together(self) -> Iterator[Changes]:
        """Fewer sequences, shorter contexts, or both, for all models where reducing one is not enough."""
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
        asleep = tuple(map(_sleep, self._may_sleep))
        starts = (smaller, asleep, (*smaller, *asleep)) if len(self.workload.models) > 1 else (smaller,)
        for first in dict.fromkeys(starts):
            if first and self._gpus_hold(first):
                yield first
            elif first:
                yield from self._fewer(first, ChangeKind.SEQUENCES)
                yield from self._fewer(first, ChangeKind.CONTEXT)

    def _fewer(self, first: Changes, kind: ChangeKind) -> Iterator[Changes]:
        """Reduce each model to the most that the GPUs can hold, in multiples of its step."""
        for model in self.workload.models:
            most = _most(_steps(model, kind), lambda n, m=model: self._gpus_hold((*first, _less(m, kind, n))))  # type: ignore[misc]
            if most:
                yield (*first, _less(model, kind, most))

    def _less_of_all(self, first: Changes, kind: ChangeKind) -> Iterator[Changes]:
        """The same fraction for each model, and then for each as much more as fits."""
        models = [model for model in self.workload.models if _steps(model, kind)]

        def changes(counts: Mapping[str, int]) -> Changes:
            return (*first, *(_less(m, kind, counts[m.name]) for m in models if counts[m.name] <= _steps(m, kind)))

        def part(n: int) -> dict[str, int]:
            return {model.name: max(1, _steps(model, kind) * (n - 1) // PARTS) for model in models}

        most = _most(PARTS + 1, lambda n: self._gpus_hold(changes(part(n)))) if models else 0
        if not most:
            return
        counts = part(most)
        for model in models:
            name, floor = model.name, counts[model.name]
            more = _most(
                _steps(model, kind) + 1 - floor,
                lambda n, name=name, floor=floor: self._gpus_hold(changes({**counts, name: floor + n})),  # type: ignore[misc]
            )
            counts[name] = floor + more
        yield changes(counts)

    def _quantized(self) -> Iterator[Changes]:
        """Quantize each model to the largest weights that the GPUs hold; all of them where one is not enough."""
        for to in (Quantization.FP8, Quantization.AWQ):
            every = self._all_quantized(to)
            found: list[Changes] = [(change,) for change in every if self._gpus_hold((change,))]
            if found or (every and self._gpus_hold(every)):
                yield from found or [every]
                return

    def _all_quantized(self, to: Quantization) -> Changes:
        plain = [m for m in self.workload.models if m.quantization is None and m.embedding and m.parameters]
        return tuple(FitChange(ChangeKind.QUANTIZATION, model.name, str(model.dtype), str(to)) for model in plain)

    @property
    def _of_file(self) -> Sequence[Model]:
        return [model for model in self.workload.models if not model.stands_by]

    @property
    def _may_sleep(self) -> Sequence[Model]:
        """Resident models without a second engine, which is awake beside the first."""
        second = {*self.workload.availability.standby, *(model.stands_by for model in self.workload.models)}
        return [model for model in self._of_file if not (model.sleeps or model.name in second)]

    def _fewest(self, changes: Sequence[FitChange], most: int) -> Iterator[Changes]:
        """The smallest sets of these changes that the GPUs hold."""
        subsets = (chosen for count in range(1, most + 1) for chosen in combinations(changes, count))
        fewest = most
        for chosen in islice(subsets, SUBSETS):
            if len(chosen) > fewest:
                return
            if self._gpus_hold(chosen):
                fewest = len(chosen)
                yield chosen

    def _at_level(self, level: int, models: Iterable[Model]) -> list[Changes]:
        """Another level of sleep for as few of these models as it takes, those with the largest backup first."""
        backups = [(each.backup.bytes, each.model.name) for each in map(engine, models) if each.backup]
        largest_first = [name for _, name in sorted(backups, key=lambda backup: (-backup[0], backup[1]))]
        for count in range(1, len(largest_first) + 1):
            changes = tuple(FitChange(ChangeKind.SLEEP_LEVEL, name, 1, level) for name in largest_first[:count])
            if _as_good_as(budget(*self._after(changes)), self.now):
                return [changes]
        return []

    def _spread(self) -> Iterator[Changes]:
        """Spread the layers of each model over more GPUs: of those that there are, else with added ones."""
        for model in self.workload.models:
            if model.memory is not None or model.attention is None:
                continue
            spread, tries = model.parallel, list[Changes]()
            for tensor in _tensor_sizes(model):
                lacking = tensor * spread.pipeline * spread.data // spread.nodes - len(self.available_memory.gpus)
                change = FitChange(ChangeKind.TENSOR, model.name, spread.tensor, tensor)
                tries.append((change, *_added(self.available_memory, max(0, lacking))))
            yield from islice(filter(self._gpus_hold, sorted(tries, key=len)), 1)

    def _more_gpus(self) -> Iterator[Changes]:
        tries = (_added(self.available_memory, count) for count in range(1, MORE_GPUS + 1))
        yield from islice((changes for changes in tries if changes and self._gpus_hold(changes)), 1)

    def _after(self, changes: Sequence[FitChange]) -> tuple[Workload, AvailableMemory]:
        return applied(self.workload, self.available_memory, changes)

    def _gpus_hold(self, changes: Sequence[FitChange]) -> bool:
        return _holds_on_gpus(budget(*self._after(changes)), self.now)

    def _completed(self, changes: Sequence[FitChange]) -> Fix | None:
        """The fix with the host memory that it takes; None where the GPUs do not hold it, or memory does not help."""
        workload, available_memory = self._after(changes)
        found = budget(workload, available_memory)
        if not _holds_on_gpus(found, self.now):
            return None
        every = (*changes, *_memory_changes(found, available_memory))
        after = budget(*self._after(every))
        if not _as_good_as(after, self.now):
            return None
        return Fix(every, tuple(_arithmetic(self.now, after)), tuple(after.not_known()))


def _steps(model: Model, kind: ChangeKind) -> int:
    """The number of steps below what is asked for; 0 where less of it does not help, or is not known to."""
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
    """Yield the numbers of GPUs that can share the heads: the next larger ones first, then the next smaller ones."""
    assert model.attention is not None
    heads, larger = model.attention.kv_heads, [size for size in TENSOR if size > model.parallel.tensor]
    for tensor in (*larger, *(size for size in reversed(TENSOR) if size < model.parallel.tensor)):
        if heads % tensor == 0 or tensor % heads == 0:
            yield tensor


def _added(available_memory: AvailableMemory, count: int) -> Changes:
    """Add GPUs, each as large as the largest there is."""
    there = len(available_memory.gpus)
    if not there or not count:
        return ()
    return (FitChange(ChangeKind.GPUS, None, there, there + count, max(available_memory.gpus)),)


# ---- whether a change helped


def _holds_on_gpus(found: Budget, now: Budget) -> bool:
    """Tell whether the GPUs hold it. If the workload is known not to fit now, unknown capacities do not rule
    out a fix.
    """
    gpus = [memory.fits for memory in found.memories if memory.gpu is not None]
    known = now.fits is False
    return found.placement.fits and all(fits if not known else fits is not False for fits in gpus)


def _as_good_as(found: Budget, now: Budget) -> bool:
    """Tell whether it fits; unknown is enough if it was known not to fit."""
    return found.fits is True or (now.fits is False and found.fits is None and found.placement.fits)


def _arithmetic(now: Budget, after: Budget) -> Iterator[str]:
    """The memories that were full, as they are after the change, with changed lines; equal GPUs share a text."""
    names_by_text: defaultdict[str, list[str]] = defaultdict(list)
    full = {memory.where for memory in now.memories if memory.fits is False}
    before = {(line.where, line.model, line.what): line.bytes for line in now.lines if line.where in full}
    for line in after.lines:
        was = before.get((line.where, line.model, line.what))
        if was is not None and was != line.bytes:
            text = f"{line.what} {gib(line.bytes)} instead of {gib(was)} ({line.how})"
            names_by_text[text].append(line.where)
    for memory in after.memories:
        if memory.where in full and memory.capacity is not None:
            names_by_text[f"{gib(memory.used)} of {gib(memory.capacity)}"].append(memory.where)
    yield from (f"{', '.join(names)}: {text}" for text, names in names_by_text.items())


# ---- the memory that a change takes in the target and in its machine


def _memory_changes(found: Budget, available_memory: AvailableMemory) -> Iterator[FitChange]:
    """Changes of memory in whole GiB: /dev/shm, the target, the machine."""
    shm = found.at(SHM)
    if shm and not shm.fits:
        yield FitChange(ChangeKind.SHM, None, available_memory.shm, _whole(shm.used))
    ram = _ram(found, available_memory)
    if ram != available_memory.ram:
        yield FitChange(ChangeKind.RAM, None, available_memory.ram, ram)
    needed = to = ram
    if available_memory.path in ALONGSIDE_WINDOWS:
        host, gpus = found.at(HOST), found.at(HOST_PER_GPUS)
        assert host is not None
        needed = max(host.used - available_memory.ram + ram, gpus.used if gpus else 0)
        to = _whole(needed)
    if needed > available_memory.host_ram:
        yield FitChange(ChangeKind.HOST_RAM, None, available_memory.host_ram, to)


def _ram(found: Budget, available_memory: AvailableMemory) -> Bytes:
    """The memory that the target should get: more where it lacks, less where Windows lacks and it can spare it."""
    ram, pinned, host = found.at(RAM), found.at(PINNED), found.at(HOST)
    assert ram is not None
    least = _whole(max(ram.used, available_memory.ram - (pinned.margin or 0) if pinned else 0))
    if least > available_memory.ram:
        return least
    if host and not host.fits:
        return max(least, available_memory.ram - _whole(host.used - available_memory.host_ram))
    return available_memory.ram


def _whole(n: Bytes) -> Bytes:
    return -(-n // GiB) * GiB
