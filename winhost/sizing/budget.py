"""Compute the memory of a workload on a path, line by line: on each GPU, in the target's RAM, in /dev/shm, on the host.

The input is a workload and the memory that a path makes available. Every line has a range: a workload that fits by the
upper ends is supported, by the lower ends alone unverified, by neither unsupported. If a value was not stated, it is
missing, and whether its memory holds the workload is unknown.
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
    PINNED,
    RAM,
    SHARED_WITH_WINDOWS,
    SHM,
    UNKNOWN_SIZE,
    VIDEO,
    BudgetLine,
    Capacity,
    MemoryUse,
    capacity_of,
    gpu_capacity,
    gpu_lines,
    host_lines,
    is_pinned,
    memory_use,
    missing_of_video,
    pinned_lines,
    placement_of,
    ram_lines,
    shm_lines,
)
from winhost.sizing.placement import Placement


@dataclass(frozen=True)
class Budget:
    """The memory that a workload takes. fits: by the upper ends; may_fit: by the lower ends; both None if that is
    unknown; anew: models that are their own standby.
    """

    variant: str
    lines: tuple[BudgetLine, ...]
    memories: tuple[MemoryUse, ...]
    placement: Placement
    missing: tuple[Missing, ...]
    fits: bool | None
    may_fit: bool | None
    anew: tuple[str, ...] = ()

    def use_of(self, where: str) -> MemoryUse | None:
        """Return the use of the memory of this name, if anything is counted there."""
        return next((memory for memory in self.memories if memory.where == where), None)

    def unknown_values(self) -> Iterator[str]:
        """Yield the missing values and capacities that keep a fit from being certain."""
        for value in self.missing:
            yield f"{value.model}: {value.what}" if value.model else value.what
        yield from dict.fromkeys(
            memory.how.removesuffix(UNKNOWN_SIZE) for memory in self.memories if memory.capacity is None
        )

    def uncertain_memories(self) -> Iterator[str]:
        """Describe the memories where only the lower ends fit, each with the line that decides: that of the widest
        range.
        """
        for memory in self.memories:
            if memory.fits is not False:
                continue
            lines = [line for line in self.lines if line.where == memory.where]
            widest = max(lines, key=lambda line: line.bytes - line.least)
            model = f"{widest.model}: " if widest.model else ""
            capacity = gib_range(memory.capacity or 0, memory.most or 0)
            yield (
                f"{memory.where}: {gib_range(memory.least, memory.used)} of {capacity}; "
                f"what decides is {model}{widest.what}, {gib_range(widest.least, widest.bytes)}"
            )


def budget(workload: Workload, available_memory: AvailableMemory) -> Budget:
    """Compute everything that a workload takes, with its standbys, and whether the available memory holds it."""
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
    missing = tuple(value for each in engines for value in each.missing) + missing_of_video(workload.video)
    fits = _conjunction([not placement.homeless, *(memory.fits for memory in memories)])
    may_fit = _conjunction([not placement.homeless, *(memory.may_fit for memory in memories)])
    return Budget(available_memory.variant, lines, memories, placement, missing, fits, may_fit, anew)


def with_fitting_standbys(workload: Workload, available_memory: AvailableMemory) -> Workload:
    """Add a second engine for each model of `availability.standby` for which there is room. A model without room, and a
    model that takes turns, starts anew when it fails.
    """
    fitting: list[str] = []
    for model in workload.models:
        if model.name not in workload.availability.standby or model.sleeps:
            continue
        trial = budget(add_standbys(workload, [*fitting, model.name]), available_memory)
        if trial.may_fit is not False:
            fitting.append(model.name)
    return add_standbys(workload, fitting) if workload.availability.standby else workload


def _conjunction(verdicts: Sequence[bool | None]) -> bool | None:
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
        tenants = {name for name, gpus in placement.gpus.items() if gpu in gpus}
        doubts = any(each.missing and each.model.name in tenants for each in engines)
        doubts = doubts or (VIDEO in tenants and bool(missing_of_video(workload.video)))
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
        (PINNED, pinned, unknown_backups and is_pinned(workload, available_memory)),
        (HOST, machine, False),
        (HOST_PER_GPUS, machine, False),
    )
    for where, capacity, doubtful in others:
        if doubtful or any(line.where == where for line in lines):
            yield memory_use(lines, where, capacity, doubts=doubtful)
