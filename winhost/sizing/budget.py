"""The memory of a workload on a path, line by line: on each GPU, in the target's RAM, in /dev/shm, on the host.

Pure: from a workload and the memory that a path makes available to sums. Every line has a range: what fits by the
upper ends is supported, by the lower ends alone unverified, by neither unsupported. A value that was not stated is
missing, and whether its memory holds it is unknown.
"""

from collections.abc import Iterator, Sequence

from winhost.core.dataclass import dataclass
from winhost.model.path import AvailableMemory
from winhost.model.units import gib_range
from winhost.model.workload import Workload, add_standbys
from winhost.sizing.engines import Engine, Missing, engine
from winhost.sizing.memories import (
    HOST,
    HOST_PER_GPUS,
    NOT_KNOWN,
    PINNED,
    RAM,
    SHARED_WITH_WINDOWS,
    SHM,
    VIDEO,
    BudgetLine,
    Capacity,
    MemoryUse,
    capacity_of,
    gpu_capacity,
    gpu_lines,
    host_lines,
    memory_use,
    missing_of_video,
    pinned_lines,
    pins,
    placement_of,
    ram_lines,
    shm_lines,
)
from winhost.sizing.placement import Placement


@dataclass(frozen=True)
class Budget:
    """The memory that a workload takes of what is available. fits: by the upper ends; may_fit: by the lower ends; None
    where that is unknown; anew: models that are their own standby.
    """

    variant: str
    lines: tuple[BudgetLine, ...]
    memories: tuple[MemoryUse, ...]
    placement: Placement
    missing: tuple[Missing, ...]
    fits: bool | None
    may_fit: bool | None
    anew: tuple[str, ...] = ()

    def at(self, where: str) -> MemoryUse | None:
        """The memory of this name, if anything is counted there."""
        return next((memory for memory in self.memories if memory.where == where), None)

    def not_known(self) -> Iterator[str]:
        """The missing values and capacities without which a fit is not certain."""
        for lack in self.missing:
            yield f"{lack.model}: {lack.what}" if lack.model else lack.what
        yield from dict.fromkeys(
            memory.how.removesuffix(NOT_KNOWN) for memory in self.memories if memory.capacity is None
        )

    def deciding(self) -> Iterator[str]:
        """The memories where only the lower ends fit, with the line that decides: the one of the widest range."""
        for memory in self.memories:
            if memory.fits is not False:
                continue
            lines = [line for line in self.lines if line.where == memory.where]
            widest = max(lines, key=lambda line: line.bytes - line.least)
            of = f"{widest.model}: " if widest.model else ""
            capacity = gib_range(memory.capacity or 0, memory.most or 0)
            yield (
                f"{memory.where}: {gib_range(memory.least, memory.used)} of {capacity}; "
                f"what decides is {of}{widest.what}, {gib_range(widest.least, widest.bytes)}"
            )


def budget(workload: Workload, available_memory: AvailableMemory) -> Budget:
    """Everything that a workload takes, second engines too, and whether the available memory holds it."""
    workload = with_fitting_standbys(workload, available_memory)
    largest, vllm = max(available_memory.gpus, default=0), workload.versions.get("vllm")
    engines = [engine(model, largest, vllm) for model in workload.models]
    shares = [gpu_capacity(workload, available_memory, gpu) for gpu in range(len(available_memory.gpus))]
    placement = placement_of(workload, engines, shares)
    shm = tuple(shm_lines(workload))
    lines = (
        *gpu_lines(workload, engines, placement, len(available_memory.gpus)),
        *ram_lines(workload, engines, available_memory, shm),
        *shm,
        *pinned_lines(workload, engines, available_memory),
        *host_lines(workload, available_memory),
    )
    memories = tuple(_memories(workload, available_memory, engines, placement, lines, shares))
    anew = tuple(model.name for model in workload.models if model.starts_anew)
    missing = tuple(lack for each in engines for lack in each.missing) + missing_of_video(workload.video)
    fits = _all([not placement.homeless, *(memory.fits for memory in memories)])
    may_fit = _all([not placement.homeless, *(memory.may_fit for memory in memories)])
    return Budget(available_memory.variant, lines, memories, placement, missing, fits, may_fit, anew)


def with_fitting_standbys(workload: Workload, available_memory: AvailableMemory) -> Workload:
    """Add a second engine for each model with a standby, where there is room beside all others. The remaining ones,
    and models that take turns, start anew where they fail.
    """
    beside: list[str] = []
    for model in workload.models:
        if model.name not in workload.availability.standby or model.sleeps:
            continue
        tried = budget(add_standbys(workload, [*beside, model.name]), available_memory)
        if tried.may_fit is not False:
            beside.append(model.name)
    return add_standbys(workload, beside) if workload.availability.standby else workload


def _all(verdicts: Sequence[bool | None]) -> bool | None:
    return False if False in verdicts else None if None in verdicts else True


def _memories(
    workload: Workload,
    available_memory: AvailableMemory,
    engines: Sequence[Engine],
    placement: Placement,
    lines: Sequence[BudgetLine],
    shares: Sequence[Capacity],
) -> Iterator[MemoryUse]:
    for gpu, share in enumerate(shares):
        here = {name for name, gpus in placement.gpus.items() if gpu in gpus}
        doubts = any(each.missing and each.model.name in here for each in engines)
        doubts = doubts or (VIDEO in here and bool(missing_of_video(workload.video)))
        unproven = not (placement.fits or placement.proven)
        yield memory_use(lines, f"gpu{gpu}", share, gpu, doubts=doubts, unproven=unproven)
    unknown_backups = any(e.model.sleeps and e.model.level == 1 and e.backup is None for e in engines)
    yield memory_use(lines, RAM, capacity_of(available_memory.ram, "what the target gets"), doubts=unknown_backups)
    under_wsl = available_memory.path in SHARED_WITH_WINDOWS
    evidence = ("wsl-pinned-reports", "vllm-pin-switch") if under_wsl else ()
    pinned = capacity_of(available_memory.pinned, f"what may be pinned{' under WSL' * under_wsl}", *evidence)
    machine = capacity_of(available_memory.host_ram, "memory of the machine")
    others = (
        (SHM, capacity_of(available_memory.shm, "size of /dev/shm", "shm-default-half"), False),
        (PINNED, pinned, unknown_backups and pins(workload, available_memory)),
        (HOST, machine, False),
        (HOST_PER_GPUS, machine, False),
    )
    for where, capacity, doubtful in others:
        if doubtful or any(line.where == where for line in lines):
            yield memory_use(lines, where, capacity, doubts=doubtful)
