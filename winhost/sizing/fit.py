"""Find how much each memory is short of for a workload, and the smallest changes that make it fit.

A fix is one change of the workload or of the GPUs, together with the host memory that it then takes. Only fixes that
were computed to fit are returned, and none that contains another. Unknown values do not rule a fix out: they are
listed with it.

The smallest change comes first: settings that cost nothing, then a workload that is a little smaller, then spread,
asleep, much smaller or moved to another machine. Other weights are advice, because they may answer differently;
purchases come last.
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
from winhost.sizing.fit_changes import (
    ADVICE,
    PURCHASE,
    REDUCTIONS,
    STEP,
    ChangeKind,
    FitChange,
    Fix,
    apply_changes,
    drop_redundant_fixes,
)
from winhost.sizing.memories import ALONGSIDE_WINDOWS, HOST, HOST_PER_GPUS, PINNED, RAM, SHM

PARTS = 64  # steps in which all models are reduced together, before each is enlarged as far as it still fits
TENSOR = (1, 2, 4, 8)  # GPUs that share a layer
MAX_ADDED_GPUS = 8
SUBSETS = 64  # sets of models to put to sleep that are tried at most
Changes = tuple[FitChange, ...]


@dataclass(frozen=True)
class Shortage:
    """The bytes that a memory is short of. at_least: even if everything takes its least."""

    where: str
    bytes: Bytes
    at_least: Bytes


@dataclass(frozen=True)
class FitAdvice:
    """Why a workload does not fit, and which changes make it fit.

    homeless: models that need more GPUs than there are; missing: values that were not stated, counted as zero; fixes:
    the smallest change first; nearest: the first fix that needs neither other weights nor a purchase.
    """

    short: tuple[Shortage, ...]
    homeless: tuple[str, ...]
    missing: tuple[Missing, ...]
    fixes: tuple[Fix, ...]
    nearest: Fix | None


def advise_fit(workload: Workload, available_memory: AvailableMemory) -> FitAdvice:
    """Return the shortages and fixes of a workload; there are none if it fits."""
    now = budget(workload, available_memory)
    short = tuple(
        Shortage(memory.where, memory.used - memory.capacity, max(0, memory.least - memory.capacity))
        for memory in now.memories
        if memory.capacity is not None and memory.used > memory.capacity
    )
    may_fit = now.fits is None and now.missing
    fixes = () if now.fits or may_fit else _FixSearch(workload, available_memory, now).fixes()
    nearest = fixes[0] if fixes and fixes[0].tier < ADVICE else None
    return FitAdvice(short, now.placement.homeless, now.missing, fixes, nearest)


class _FixSearch:
    """Tries changes of one workload and its available memory. now: the budget without a change."""

    def __init__(self, workload: Workload, available_memory: AvailableMemory, now: Budget) -> None:
        self.workload = workload
        self.available_memory = available_memory
        self.now = now

    def fixes(self) -> tuple[Fix, ...]:
        """Find the fixes, the smallest change first."""
        found = self._try_all([(), *self._workload_changes()])
        if not any(change.kind in REDUCTIONS for fix in found for change in fix.changes):
            found += self._try_all(self._reduce_all())
        if not any(fix.tier < PURCHASE for fix in found):
            found += self._try_all(self._combine())
        found += self._try_all(self._add_gpus())
        return tuple(sorted(drop_redundant_fixes(found), key=lambda fix: (fix.tier, len(fix.changes), fix.lost_share)))

    def _try_all(self, tries: Iterable[Changes]) -> list[Fix]:
        completed = (self._complete(changes) for changes in tries)
        return [fix for fix in completed if fix is not None and fix.changes]

    def _workload_changes(self) -> Iterator[Changes]:
        yield from self._reduce_each((), ChangeKind.SEQUENCES)
        yield from self._reduce_each((), ChangeKind.CONTEXT)
        yield from self._quantize()
        yield from self._smallest_sets([*map(_sleep, self._sleep_candidates)], len(self._sleep_candidates))
        # A model that states no level is stopped between its turns if it cannot sleep.
        stated = [each for each in self.workload.models if each.sleep_level is not None]
        yield from self._change_level(2, self.workload.models) or self._change_level(0, stated)
        yield from self._spread()
        # At least one model stays on this machine.
        moves = [FitChange(ChangeKind.MOVE, model.name, None, "another machine") for model in self._own_models]
        yield from self._smallest_sets(moves, len(moves) - 1)

    def _reduce_all(self) -> Iterator[Changes]:
        """Reduce sequences, contexts, or both, of all models."""
        yield from self._reduce_evenly((), ChangeKind.SEQUENCES)
        yield from self._reduce_evenly((), ChangeKind.CONTEXT)
        one = tuple(
            _reduction(model, ChangeKind.SEQUENCES, 1)
            for model in self.workload.models
            if _steps(model, ChangeKind.SEQUENCES)
        )
        for both in self._reduce_evenly(one, ChangeKind.CONTEXT) if one else ():
            yield from self._reduce_evenly(both[len(one) :], ChangeKind.SEQUENCES)

    def _combine(self) -> Iterator[Changes]:
        """Quantize all models, put them to sleep, or both, and then reduce sequences or context of one."""
        smaller = self._quantize_all(Quantization.AWQ)
        asleep = tuple(map(_sleep, self._sleep_candidates))
        starts = (smaller, asleep, (*smaller, *asleep)) if len(self.workload.models) > 1 else (smaller,)
        for first in dict.fromkeys(starts):
            if first and self._fits_gpus_with(first):
                yield first
            elif first:
                yield from self._reduce_each(first, ChangeKind.SEQUENCES)
                yield from self._reduce_each(first, ChangeKind.CONTEXT)

    def _reduce_each(self, first: Changes, kind: ChangeKind) -> Iterator[Changes]:
        """Reduce each model to the most that the GPUs can hold, in multiples of its step."""
        for model in self.workload.models:
            most = _largest_count(
                _steps(model, kind),
                lambda n, m=model: self._fits_gpus_with((*first, _reduction(m, kind, n))),  # type: ignore[misc]
            )
            if most:
                yield (*first, _reduction(model, kind, most))

    def _reduce_evenly(self, first: Changes, kind: ChangeKind) -> Iterator[Changes]:
        """Reduce all models to the same fraction, and then enlarge each as far as it still fits."""
        models = [model for model in self.workload.models if _steps(model, kind)]

        def changes(counts: Mapping[str, int]) -> Changes:
            return (*first, *(_reduction(m, kind, counts[m.name]) for m in models if counts[m.name] <= _steps(m, kind)))

        def part(n: int) -> dict[str, int]:
            return {model.name: max(1, _steps(model, kind) * (n - 1) // PARTS) for model in models}

        most = _largest_count(PARTS + 1, lambda n: self._fits_gpus_with(changes(part(n)))) if models else 0
        if not most:
            return
        counts = part(most)
        for model in models:
            name, floor = model.name, counts[model.name]
            more = _largest_count(
                _steps(model, kind) + 1 - floor,
                lambda n, name=name, floor=floor: self._fits_gpus_with(changes({**counts, name: floor + n})),  # type: ignore[misc]
            )
            counts[name] = floor + more
        yield changes(counts)

    def _quantize(self) -> Iterator[Changes]:
        """Quantize each model to the largest weights that the GPUs hold; all models if one is not enough."""
        for to in (Quantization.FP8, Quantization.AWQ):
            every = self._quantize_all(to)
            found: list[Changes] = [(change,) for change in every if self._fits_gpus_with((change,))]
            if found or (every and self._fits_gpus_with(every)):
                yield from found or [every]
                return

    def _quantize_all(self, to: Quantization) -> Changes:
        plain = [m for m in self.workload.models if m.quantization is None and m.embedding and m.parameters]
        return tuple(FitChange(ChangeKind.QUANTIZATION, model.name, str(model.dtype), str(to)) for model in plain)

    @property
    def _own_models(self) -> Sequence[Model]:
        """The models of the workload file, without standbys."""
        return [model for model in self.workload.models if not model.stands_by]

    @property
    def _sleep_candidates(self) -> Sequence[Model]:
        """Resident models without a standby, which has to stay awake next to its model."""
        with_standby = {*self.workload.availability.standby, *(model.stands_by for model in self.workload.models)}
        return [model for model in self._own_models if not (model.sleeps or model.name in with_standby)]

    def _smallest_sets(self, changes: Sequence[FitChange], most: int) -> Iterator[Changes]:
        """Yield the smallest sets of these changes that the GPUs hold. most: the size of the largest set to try."""
        subsets = (chosen for count in range(1, most + 1) for chosen in combinations(changes, count))
        fewest = most
        for chosen in islice(subsets, SUBSETS):
            if len(chosen) > fewest:
                return
            if self._fits_gpus_with(chosen):
                fewest = len(chosen)
                yield chosen

    def _change_level(self, level: int, models: Iterable[Model]) -> list[Changes]:
        """Change the level of sleep of as few of these models as necessary, those with the largest backup first."""
        backups = [(each.backup.bytes, each.model.name) for each in map(engine, models) if each.backup]
        largest_first = [name for _, name in sorted(backups, key=lambda backup: (-backup[0], backup[1]))]
        for count in range(1, len(largest_first) + 1):
            changes = tuple(FitChange(ChangeKind.SLEEP_LEVEL, name, 1, level) for name in largest_first[:count])
            if _fits_or_unknown(budget(*self._apply(changes)), self.now):
                return [changes]
        return []

    def _spread(self) -> Iterator[Changes]:
        """Spread the layers of each model over more GPUs: existing ones if possible, else added ones."""
        for model in self.workload.models:
            if model.memory is not None or model.attention is None:
                continue
            spread, tries = model.parallel, list[Changes]()
            for tensor in _tensor_sizes(model):
                missing = tensor * spread.pipeline * spread.data // spread.nodes - len(self.available_memory.gpus)
                change = FitChange(ChangeKind.TENSOR, model.name, spread.tensor, tensor)
                tries.append((change, *_add_gpu_changes(self.available_memory, max(0, missing))))
            yield from islice(filter(self._fits_gpus_with, sorted(tries, key=len)), 1)

    def _add_gpus(self) -> Iterator[Changes]:
        tries = (_add_gpu_changes(self.available_memory, count) for count in range(1, MAX_ADDED_GPUS + 1))
        yield from islice((changes for changes in tries if changes and self._fits_gpus_with(changes)), 1)

    def _apply(self, changes: Sequence[FitChange]) -> tuple[Workload, AvailableMemory]:
        return apply_changes(self.workload, self.available_memory, changes)

    def _fits_gpus_with(self, changes: Sequence[FitChange]) -> bool:
        return _fits_on_gpus(budget(*self._apply(changes)), self.now)

    def _complete(self, changes: Sequence[FitChange]) -> Fix | None:
        """Add the host memory that the changes take; None if the GPUs do not hold them, or memory does not help."""
        workload, available_memory = self._apply(changes)
        found = budget(workload, available_memory)
        if not _fits_on_gpus(found, self.now):
            return None
        every = (*changes, *_memory_changes(found, available_memory))
        after = budget(*self._apply(every))
        if not _fits_or_unknown(after, self.now):
            return None
        return Fix(every, tuple(_arithmetic(self.now, after)), tuple(after.unknown_values()))


def _steps(model: Model, kind: ChangeKind) -> int:
    """Return the number of steps below the requested value; 0 if reducing it does not help, or is not known to help."""
    if model.attention is None or model.kv is not None or model.memory is not None:
        return 0
    was = model.sequences if kind is ChangeKind.SEQUENCES else model.context
    return (was - 1) // STEP[kind] if was else 0


def _reduction(model: Model, kind: ChangeKind, steps: int) -> FitChange:
    was = model.sequences if kind is ChangeKind.SEQUENCES else model.context
    return FitChange(kind, model.name, was, steps * STEP[kind])


def _largest_count(limit: int, holds: Callable[[int], bool]) -> int:
    """Return the largest count up to the limit that holds; 0 if none does. Each smaller count must hold too."""
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


def _add_gpu_changes(available_memory: AvailableMemory, count: int) -> Changes:
    """Add GPUs, each as large as the largest one."""
    existing = len(available_memory.gpus)
    if not existing or not count:
        return ()
    return (FitChange(ChangeKind.GPUS, None, existing, existing + count, max(available_memory.gpus)),)


# ---- whether a change helped


def _fits_on_gpus(found: Budget, now: Budget) -> bool:
    """Tell whether the GPUs hold the workload. If it is known not to fit now, unknown capacities are no objection."""
    gpus = [memory.fits for memory in found.memories if memory.gpu is not None]
    known = now.fits is False
    return found.placement.fits and all(fits if not known else fits is not False for fits in gpus)


def _fits_or_unknown(found: Budget, now: Budget) -> bool:
    """Tell whether the workload fits; if it is known not to fit now, an unknown result is enough."""
    return found.fits is True or (now.fits is False and found.fits is None and found.placement.fits)


def _arithmetic(now: Budget, after: Budget) -> Iterator[str]:
    """Describe the memories that were full as they are after the change, with their changed lines. GPUs with the same
    text share a sentence.
    """
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
    """Yield changes of memory in whole GiB: of /dev/shm, the target, the machine."""
    shm = found.use_of(SHM)
    if shm and not shm.fits:
        yield FitChange(ChangeKind.SHM, None, available_memory.shm, _round_up(shm.used))
    ram = _ram(found, available_memory)
    if ram != available_memory.ram:
        yield FitChange(ChangeKind.RAM, None, available_memory.ram, ram)
    needed = to = ram
    if available_memory.path in ALONGSIDE_WINDOWS:
        host, gpus = found.use_of(HOST), found.use_of(HOST_PER_GPUS)
        assert host is not None
        needed = max(host.used - available_memory.ram + ram, gpus.used if gpus else 0)
        to = _round_up(needed)
    if needed > available_memory.host_ram:
        yield FitChange(ChangeKind.HOST_RAM, None, available_memory.host_ram, to)


def _ram(found: Budget, available_memory: AvailableMemory) -> Bytes:
    """Return the memory that the target should get: more if it is short of memory, less if Windows is short and the
    target can spare it.
    """
    ram, pinned, host = found.use_of(RAM), found.use_of(PINNED), found.use_of(HOST)
    assert ram is not None
    least = _round_up(max(ram.used, available_memory.ram - (pinned.margin or 0) if pinned else 0))
    if least > available_memory.ram:
        return least
    if host and not host.fits:
        return max(least, available_memory.ram - _round_up(host.used - available_memory.host_ram))
    return available_memory.ram


def _round_up(n: Bytes) -> Bytes:
    return -(-n // GiB) * GiB
