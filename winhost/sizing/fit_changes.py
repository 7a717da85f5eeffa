"""Changes of a workload or of its available memory, and fixes: changes that together make it fit."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import StrEnum
from fractions import Fraction

from winhost.core.dataclass import dataclass
from winhost.model.path import AvailableMemory
from winhost.model.units import Bytes, gib
from winhost.model.workload import Model, ModelState, Quantization, Workload
from winhost.sizing.memories import SHARED_WITH_WINDOWS


class ChangeKind(StrEnum):
    """The kinds of changes. `to` of a FitChange is a number, a size in bytes for memory, or a format for weights."""

    SEQUENCES = "sequences"
    CONTEXT = "context"
    QUANTIZATION = "quantization"
    SLEEP = "sleep"
    SLEEP_LEVEL = "sleep-level"
    TENSOR = "tensor"
    MOVE = "move"
    GPUS = "gpus"
    SHM = "shm"
    RAM = "ram"
    HOST_RAM = "host-ram"


@dataclass(frozen=True)
class FitChange:
    """One change to a model or, where that is None, to the available memory.

    was: None where it was not stated; each: bytes of each added GPU.
    """

    kind: ChangeKind
    model: str | None
    was: int | str | None
    to: int | str
    each: Bytes | None = None

    @property
    def text(self) -> str:
        model = f"{self.model}: " if self.model else ""
        return model + _TEXTS[self.kind](self)


def apply_changes(
    workload: Workload, available_memory: AvailableMemory, changes: Iterable[FitChange]
) -> tuple[Workload, AvailableMemory]:
    """Return the workload and its available memory with all changes made."""
    for change in changes:
        if change.kind is ChangeKind.MOVE:
            workload = replace(workload, models=tuple(m for m in workload.models if m.name != change.model))
        elif change.model is not None:
            models = tuple(
                _change_model(model, change) if model.name == change.model else model for model in workload.models
            )
            workload = replace(workload, models=models)
        else:
            available_memory = _resize_memory(available_memory, change)
    return workload, available_memory


def _resize_memory(available_memory: AvailableMemory, change: FitChange) -> AvailableMemory:
    to = int(change.to)
    match change.kind:
        case ChangeKind.GPUS:
            assert change.each is not None
            added = [change.each] * (to - len(available_memory.gpus))
            return replace(available_memory, gpus=(*available_memory.gpus, *added))
        case ChangeKind.SHM:
            return replace(available_memory, shm=to)
        case ChangeKind.RAM:
            pinned = available_memory.pinned
            # If Linux has its own driver, the memory that can be pinned grows with RAM.
            if pinned is not None and available_memory.path not in SHARED_WITH_WINDOWS:
                pinned = max(0, pinned + to - available_memory.ram)
            return replace(available_memory, ram=to, pinned=pinned)
        case ChangeKind.HOST_RAM:
            return replace(available_memory, host_ram=to)
    raise AssertionError(change.kind)


def _change_model(model: Model, change: FitChange) -> Model:
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
            return replace(model, chosen_level=int(change.to))
        case ChangeKind.TENSOR:
            return replace(model, parallel=replace(model.parallel, tensor=int(change.to)))
    raise AssertionError(change.kind)


STEP = {ChangeKind.SEQUENCES: 1, ChangeKind.CONTEXT: 1024}  # sequences, tokens
_TEXTS: dict[ChangeKind, Callable[[FitChange], str]] = {
    ChangeKind.SEQUENCES: lambda c: f"sequences at once: {c.to:,} instead of {c.was:,}",
    ChangeKind.CONTEXT: lambda c: f"a context of {c.to:,} tokens instead of {c.was:,}",
    ChangeKind.QUANTIZATION: lambda c: f"weights in {c.to}",
    ChangeKind.SLEEP: lambda _: "let it sleep and take turns",
    ChangeKind.SLEEP_LEVEL: lambda c: (
        f"sleep level {c.to}, which keeps no weights in host memory"
        if c.to
        else "no sleep_level, so that it is stopped between its turns where it cannot sleep"
    ),
    ChangeKind.TENSOR: lambda c: f"spread each layer over {c.to} GPUs",
    ChangeKind.MOVE: lambda _: "serve it on another machine",
    ChangeKind.GPUS: lambda c: f"{c.to} GPUs instead of {c.was}, each added one of {gib(c.each or 0)}",
    ChangeKind.SHM: lambda c: f"{gib(int(c.to))} of /dev/shm",
    ChangeKind.RAM: lambda c: f"{gib(int(c.to))} of memory for the target instead of {gib(int(c.was or 0))}",
    ChangeKind.HOST_RAM: lambda c: f"{gib(int(c.to))} of memory in the machine instead of {gib(int(c.was or 0))}",
}


@dataclass(frozen=True)
class Fix:
    """Changes that together make a workload fit.

    shows: the arithmetic; unknown: what stays unknown even then, so that the fit is not certain.
    """

    changes: tuple[FitChange, ...]
    shows: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "; ".join(change.text for change in self.changes)

    @property
    def tier(self) -> int:
        """The position in TIERS of its largest change."""
        less = TIERS.index(LARGE_REDUCTIONS if self.lost_share > MAX_LOSS else REDUCTIONS)
        tiers = {kind: tier for tier, kinds in enumerate(TIERS) for kind in kinds} | dict.fromkeys(REDUCTIONS, less)
        return max(tiers[change.kind] for change in self.changes)

    @property
    def lost_share(self) -> Fraction:
        """The largest share of sequences times context that any model loses."""
        remaining: defaultdict[str | None, Fraction] = defaultdict(lambda: Fraction(1))
        for change in self.changes:
            if change.kind in REDUCTIONS:
                remaining[change.model] *= Fraction(int(change.to), int(change.was or change.to))
        return 1 - min(remaining.values(), default=Fraction(1))


REDUCTIONS = (ChangeKind.SEQUENCES, ChangeKind.CONTEXT)
MAX_LOSS = Fraction(1, 2)  # a reduction beyond this ranks in the tier LARGE_REDUCTIONS
LARGE_REDUCTIONS: tuple[ChangeKind, ...] = ()
TIERS: tuple[tuple[ChangeKind, ...], ...] = (
    (ChangeKind.SHM, ChangeKind.RAM),
    REDUCTIONS,
    (ChangeKind.TENSOR,),
    (ChangeKind.SLEEP,),
    (ChangeKind.SLEEP_LEVEL,),
    LARGE_REDUCTIONS,
    (ChangeKind.MOVE,),
    (ChangeKind.QUANTIZATION,),
    (ChangeKind.GPUS, ChangeKind.HOST_RAM),
)
ADVICE = TIERS.index((ChangeKind.QUANTIZATION,))  # from this tier on, a fix is advice only
PURCHASE = ADVICE + 1
_MEMORY_CHANGES = (ChangeKind.SHM, ChangeKind.RAM, ChangeKind.HOST_RAM)


def drop_redundant_fixes(fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """Drop fixes that contain another fix."""
    distinct = list(dict.fromkeys(fixes))
    return tuple(fix for fix in distinct if not any(_is_contained(other, fix) for other in distinct))


def _is_contained(fix: Fix, other: Fix) -> bool:
    """Tell whether the other fix makes each change of this one, or a larger change of memory."""
    if fix == other:
        return False
    changes = {(change.kind, change.model): change.to for change in other.changes}
    for change in fix.changes:
        to = changes.get((change.kind, change.model))
        grows = change.kind in _MEMORY_CHANGES and to is not None and int(to) >= int(change.to)
        if to != change.to and not grows:
            return False
    return True
