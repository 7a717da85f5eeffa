"""Try every kind of change that may make a workload fit."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, islice

from winhost.model.path import AvailableMemory
from winhost.model.workload import (
    Model,
    ModelState,
    Quantization,
    Workload,
)
from winhost.sizing.budget import Budget, budget
from winhost.sizing.engines import engine
from winhost.sizing.fit_changes import STEP, ChangeKind, FitChange, applied
from winhost.sizing.fit_fixes import LESS, PURCHASE, Fix, minimal
from winhost.sizing.fit_judgement import arithmetic, as_good_as, holds_on_gpus, not_known
from winhost.sizing.fit_memory import memory_changes

PARTS = 64  # steps in which all models are reduced together, before each gets back what still fits
TENSOR = (1, 2, 4, 8)  # GPUs that share a layer
MORE_GPUS = 8  # are tried at most
SUBSETS = 64  # of models to put to sleep
Changes = tuple[FitChange, ...]


class FixSearch:
    """All changes that are tried for one workload and its available memory."""

    def __init__(self, workload: Workload, available_memory: AvailableMemory, now: Budget) -> None:
        self.workload = workload
        self.available_memory = available_memory
        self.now = now

    def fixes(self) -> tuple[Fix, ...]:
        """The smallest change first."""
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
        yield from self._asleep()
        yield from self._at_level(2) or self._without_level()
        yield from self._spread()
        yield from self._elsewhere()

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

    def _asleep(self) -> Iterator[Changes]:
        """The fewest resident models that must sleep."""
        yield from self._fewest([*map(_sleep, self._may_sleep)], len(self._may_sleep))

    def _elsewhere(self) -> Iterator[Changes]:
        """The fewest models that must go to another machine, so that one at least stays."""
        moves = [FitChange(ChangeKind.MOVE, model.name, None, "another machine") for model in self._of_file]
        yield from self._fewest(moves, len(moves) - 1)

    def _fewest(self, changes: Sequence[FitChange], most: int) -> Iterator[Changes]:
        subsets = (chosen for count in range(1, most + 1) for chosen in combinations(changes, count))
        fewest = most
        for chosen in islice(subsets, SUBSETS):
            if len(chosen) > fewest:
                return
            if self._gpus_hold(chosen):
                fewest = len(chosen)
                yield chosen

    def _without_level(self) -> list[Changes]:
        """No level of sleep, where one is stated: a plan stops such a model between its turns."""
        return self._at_level(0, [each for each in self.workload.models if each.sleep_level is not None])

    def _at_level(self, level: int, models: Iterable[Model] | None = None) -> list[Changes]:
        """Another level of sleep for as few models as it takes, those with the largest backup first."""
        engines = map(engine, self.workload.models if models is None else models)
        backups = [(each.backup.bytes, each.model.name) for each in engines if each.backup]
        largest_first = [name for _, name in sorted(backups, key=lambda backup: (-backup[0], backup[1]))]
        for count in range(1, len(largest_first) + 1):
            changes = tuple(FitChange(ChangeKind.SLEEP_LEVEL, name, 1, level) for name in largest_first[:count])
            if as_good_as(budget(*self._after(changes)), self.now):
                return [changes]
        return []

    def _spread(self) -> Iterator[Changes]:
        """Spread the layers of each model over more GPUs: of those that there are, else with added ones."""
        for model in self.workload.models:
            if model.memory is not None or model.attention is None:
                continue
            tries = [self._over(model, tensor) for tensor in _tensor_sizes(model)]
            enough = [changes for changes in tries if len(changes) == 1]
            for changes in (*enough, *(changes for changes in tries if changes not in enough)):
                if self._gpus_hold(changes):
                    yield changes
                    break

    def _over(self, model: Model, tensor: int) -> Changes:
        change = FitChange(ChangeKind.TENSOR, model.name, model.parallel.tensor, tensor)
        lacking = tensor * model.parallel.pipeline * model.parallel.data // model.parallel.nodes - len(
            self.available_memory.cards
        )
        return (change, *_added(self.available_memory, lacking)) if lacking > 0 else (change,)

    def _more_gpus(self) -> Iterator[Changes]:
        for count in range(1, MORE_GPUS + 1):
            changes = tuple(_added(self.available_memory, count))
            if changes and self._gpus_hold(changes):
                yield changes
                return

    def _after(self, changes: Sequence[FitChange]) -> tuple[Workload, AvailableMemory]:
        return applied(self.workload, self.available_memory, changes)

    def _gpus_hold(self, changes: Sequence[FitChange]) -> bool:
        return holds_on_gpus(budget(*self._after(changes)), self.now)

    def _completed(self, changes: Sequence[FitChange]) -> Fix | None:
        """The fix with the host memory that it takes; None where the GPUs do not hold it, or memory does not help."""
        workload, available_memory = self._after(changes)
        found = budget(workload, available_memory)
        if not holds_on_gpus(found, self.now):
            return None
        every = (*changes, *memory_changes(found, available_memory))
        after = budget(*self._after(every))
        if not as_good_as(after, self.now):
            return None
        return Fix(every, tuple(arithmetic(self.now, after)), tuple(not_known(after)))


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
    """The next larger ones first, then the next smaller ones."""
    assert model.attention is not None
    heads, larger = model.attention.kv_heads, [size for size in TENSOR if size > model.parallel.tensor]
    for tensor in (*larger, *(size for size in reversed(TENSOR) if size < model.parallel.tensor)):
        if heads % tensor == 0 or tensor % heads == 0:
            yield tensor


def _added(available_memory: AvailableMemory, count: int) -> Iterator[FitChange]:
    """More GPUs, each as large as the largest there is."""
    if available_memory.cards:
        there = len(available_memory.cards)
        yield FitChange(ChangeKind.GPUS, None, there, there + count, max(available_memory.cards))
