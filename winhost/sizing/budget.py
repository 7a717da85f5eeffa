"""The memory of a workload on a path, line by line: on each GPU, in the target's RAM, in /dev/shm, on the host.

Pure: from a workload and the memory that a path makes available to sums. Every line has a range: what fits by the
upper ends is supported, by the lower ends alone unverified, by neither unsupported. A value that was not stated is
missing, and whether its place fits is unknown.
"""

from collections.abc import Iterator, Sequence

from winhost.core.dataclass import dataclass
from winhost.model.path import AvailableMemory
from winhost.model.units import gib_range
from winhost.model.workload import Workload, with_standbys
from winhost.sizing.engines import Engine, Missing, engine
from winhost.sizing.gpu_memory import VIDEO, gpu_capacity, gpu_lines, missing_of_video, placement_of
from winhost.sizing.host_memory import host_lines, pinned_lines, pins, ram_lines, shm_lines
from winhost.sizing.memory_places import (
    HOST,
    HOST_PER_GPUS,
    NOT_KNOWN,
    PINNED,
    RAM,
    SHARED_WITH_WINDOWS,
    SHM,
    BudgetLine,
    Capacity,
    MemoryPlace,
    capacity_of,
    memory_place,
)
from winhost.sizing.placement import Placement


@dataclass(frozen=True)
class Budget:
    """The memory that a workload takes of what is available. fits: by the upper ends; may_fit: by the lower ends; None
    where that is unknown; anew: models that are their own standby.
    """

    variant: str
    lines: tuple[BudgetLine, ...]
    places: tuple[MemoryPlace, ...]
    placement: Placement
    missing: tuple[Missing, ...]
    fits: bool | None
    may_fit: bool | None
    anew: tuple[str, ...] = ()

    def at(self, where: str) -> MemoryPlace | None:
        """The place of this name, if anything is counted there."""
        return next((place for place in self.places if place.where == where), None)

    def not_known(self) -> Iterator[str]:
        """The missing values and capacities without which a fit is not certain."""
        for lack in self.missing:
            yield f"{lack.model}: {lack.what}" if lack.model else lack.what
        yield from dict.fromkeys(place.how.removesuffix(NOT_KNOWN) for place in self.places if place.capacity is None)

    def deciding(self) -> Iterator[str]:
        """The places where only the lower ends fit, with the line that decides: the one of the widest range."""
        for place in self.places:
            if place.fits is not False:
                continue
            lines = [line for line in self.lines if line.where == place.where]
            widest = max(lines, key=lambda line: line.bytes - line.least)
            of = f"{widest.model}: " if widest.model else ""
            capacity = gib_range(place.capacity or 0, place.most or 0)
            yield (
                f"{place.where}: {gib_range(place.least, place.used)} of {capacity}; "
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
    places = tuple(_places(workload, available_memory, lines, shares, _Doubts(workload, engines, placement)))
    anew = tuple(model.name for model in workload.models if model.starts_anew)
    missing = tuple(lack for each in engines for lack in each.missing) + missing_of_video(workload.video)
    fits = _all([not placement.homeless, *(place.fits for place in places)])
    may_fit = _all([not placement.homeless, *(place.may_fit for place in places)])
    return Budget(available_memory.variant, lines, places, placement, missing, fits, may_fit, anew)


def with_fitting_standbys(workload: Workload, available_memory: AvailableMemory) -> Workload:
    """Add a second engine for each model with a standby, where there is room beside all others. The remaining ones,
    and models that take turns, start anew where they fail.
    """
    beside: list[str] = []
    for model in workload.models:
        if model.name not in workload.availability.standby or model.sleeps:
            continue
        tried = budget(with_standbys(workload, [*beside, model.name]), available_memory)
        if tried.may_fit is not False:
            beside.append(model.name)
    return with_standbys(workload, beside) if workload.availability.standby else workload


def _all(verdicts: Sequence[bool | None]) -> bool | None:
    return False if False in verdicts else None if None in verdicts else True


@dataclass(frozen=True)
class _Doubts:
    """The places whose use is not fully known."""

    workload: Workload
    engines: Sequence[Engine]
    placement: Placement

    def gpu(self, gpu: int) -> bool:
        """Tell whether a value on this GPU is missing."""
        placed = self.placement.gpus
        video = bool(missing_of_video(self.workload.video)) and gpu in placed.get(VIDEO, ())
        return video or any(each.missing and gpu in placed.get(each.model.name, ()) for each in self.engines)

    @property
    def backups(self) -> bool:
        """Tell whether the size of a backup is missing."""
        return any(e.model.sleeps and e.model.level == 1 and e.backup is None for e in self.engines)


def _places(
    workload: Workload,
    available_memory: AvailableMemory,
    lines: Sequence[BudgetLine],
    shares: Sequence[Capacity],
    doubts: _Doubts,
) -> Iterator[MemoryPlace]:
    for gpu, share in enumerate(shares):
        unproven = not (doubts.placement.fits or doubts.placement.proven)
        yield memory_place(lines, f"gpu{gpu}", share, gpu, doubts=doubts.gpu(gpu), unproven=unproven)
    yield memory_place(lines, RAM, capacity_of(available_memory.ram, "what the target gets"), doubts=doubts.backups)
    others = (
        (SHM, capacity_of(available_memory.shm, "size of /dev/shm", "shm-default-half"), False),
        (
            PINNED,
            capacity_of(available_memory.pinned, *_pinned_bound(available_memory)),
            doubts.backups and pins(workload, available_memory),
        ),
        (HOST, capacity_of(available_memory.host_ram, "memory of the machine"), False),
        (HOST_PER_GPUS, capacity_of(available_memory.host_ram, "memory of the machine"), False),
    )
    for where, capacity, doubtful in others:
        if doubtful or any(line.where == where for line in lines):
            yield memory_place(lines, where, capacity, doubts=doubtful)


def _pinned_bound(available_memory: AvailableMemory) -> tuple[str, ...]:
    if available_memory.path in SHARED_WITH_WINDOWS:
        return "what may be pinned under WSL", "wsl-pinned-reports", "vllm-pin-switch"
    return ("what may be pinned",)
