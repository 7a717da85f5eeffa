"""The states of a model between its turns, what each keeps and how long the way back takes, and the chosen one."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace

from winhost.compat.capabilities.amounts import DISK_RATE, GB
from winhost.compat.swap import IMAGE_START_SECONDS, IMAGE_WEIGHTS_GIB
from winhost.compat.target import Target
from winhost.compat.workload_rules import is_safe_to_reload, with_sleep_levels
from winhost.core.dataclass import dataclass
from winhost.gateway.gateway_settings import Limits
from winhost.model.path import AvailableMemory
from winhost.model.reason import Finding
from winhost.model.units import Bytes, GiB
from winhost.model.workload import LoadFormat, Model, ModelState, Workload
from winhost.serving.when import Case, causes_of
from winhost.sizing.budget import budget
from winhost.sizing.engines import MemoryPart, weights
from winhost.sizing.memories import RAM, pins

MEASURED = (
    "7.6B in bf16, 14.29 GiB of weights, one H200, vLLM 0.24.0, driver 580.159.04, Linux, mostly single runs; on disk: "
    "1.75B, 3.26 GiB, one H100; packed: 5.5B, 10.24 GiB, one H200"
)
_WEIGHTS_GIB = 14.29
_LOADING = 10  # seconds of a start
PACKED_PERCENT = 70  # of the original, at most: docs/evidence/packed-weights.md


@dataclass(frozen=True)
class Rung:
    """back, away: seconds, fastest and slowest measured; leaves: the slowest of a later leave, in seconds; gpu: what
    stays on the GPU; fixed: seconds that are the same with any weights; of_weights: of host memory, in multiples of
    the weights; measured_with: GiB of weights.
    """

    name: str
    back: tuple[float, float]
    away: str
    leaves: float
    of_weights: float
    gpu: str
    needs: str
    fixed: float = 0
    measured_with: float = _WEIGHTS_GIB

    def swap(self, weights_gib: float) -> float:
        """Seconds until it answers where another one like it has to leave first, in proportion to the weights; an
        estimate where they are not those that were measured.
        """
        return self.fixed + (self.back[1] + self.leaves - self.fixed) * weights_gib / self.measured_with

    def start(self, weights_gib: float) -> float:
        """Seconds until it answers where nobody has to leave, estimated as those of a swap."""
        fixed = max(0.0, self.fixed - self.leaves)
        return fixed + (self.back[1] - fixed) * weights_gib / self.measured_with


_ASLEEP, _OUT = "1.8 to 2.7 GiB", "0.6 to 6 s"
_FIRST, _NATIVE = "12.2 to 13.8 s first, then 0.43 s", "Linux's own driver, one GPU"
AWAKE = Rung("awake", (0, 0), "-", 0, 0, "all of it", "room beside the others")
PINNED = Rung("level 1, pinned", (0.39, 0.82), _FIRST, 0.43, 1.95, _ASLEEP, "memory stays taken")
SUSPENDED = Rung("level 1, then suspended", (1.9, 2.0), "as level 1, and 1.5 s", 1.93, 1.95, "4 MiB", _NATIVE)
ON_DISK = Rung(
    "level 1, then on disk", IMAGE_START_SECONDS, "7.7 to 14.1 s once, then 0.6 to 6 s", 6, 1.95, "nothing",
    f"{_NATIVE}, CRIU",
    measured_with=IMAGE_WEIGHTS_GIB,
)  # fmt: skip
RELOADED = Rung("level 2", (2.1, 2.3), "0.05 s", 0.05, 1.0, _ASLEEP, "dense bf16, no adapters, files cached")
RELOADED_PACKED = Rung(
    "level 2, packed", (0.6, 1.04), "0.05 s", 0.05, PACKED_PERCENT / 100, _ASLEEP,
    "load_format packed, dense bf16, files cached", measured_with=10.24,
)  # fmt: skip
UNPINNED = Rung(
    "level 1, not pinned", (2.59, 2.77), "9.6 to 10.2 s each time", 10.2, 1.0, _ASLEEP, "as in WSL without pinning"
)
STOPPED = Rung("stopped, caches warm", (47.2, 50.6), _OUT, 6, 0, "nothing", "nothing", fixed=50.6 + 6 - _LOADING)
COLD = Rung("cold", (91.5, 91.5), _OUT, 6, 0, "nothing", "nothing", fixed=91.5 + 6 - _LOADING)
LADDER = (AWAKE, PINNED, SUSPENDED, RELOADED_PACKED, RELOADED, UNPINNED, ON_DISK, STOPPED, COLD)


@dataclass(frozen=True)
class Asleep:
    """rung: by its name; seconds: a swap to it, None where the size of its weights is not known; kept: whether that is
    soon enough, None where that is not known, or nobody asked.
    """

    rung: str
    seconds: float | None
    kept: bool | None


def chosen(rung: Rung, weights_gib: float | None, within: float | None) -> Asleep:
    if weights_gib is None:
        return Asleep(rung.name, None, None)
    seconds = rung.swap(weights_gib)
    return Asleep(rung.name, seconds, None if within is None else seconds <= within)


def choose(possible: Iterable[Rung], weights_gib: float | None, within: float | None) -> Asleep:
    """The first that is soon enough, else the fastest. possible: the preferred first, and at least one."""
    found = [chosen(rung, weights_gib, within) for rung in possible]
    return next((each for each in found if each.kept is not False), min(found, key=lambda each: each.seconds or 0))


def preferred(pinned: bool, reloads: bool, model: Model | None = None) -> tuple[Rung, ...]:
    """The rungs in the order of preference: level 1 changes no answer, so it comes before level 2, which must be safe
    (reloads). pinned: backups are pinned. A model is suspended or written to disk only if the workload asks for it.
    """
    level_1 = PINNED if pinned else UNPINNED
    if model is not None and model.suspend:
        level_1 = ON_DISK if model.image else SUSPENDED
    packed = model is not None and model.load_format is LoadFormat.PACKED
    return (level_1, *([RELOADED_PACKED if packed else RELOADED] if reloads else []), STOPPED)


def format_wait(found: Asleep, within: int) -> str:
    """Say how a model starts that is its own standby, and whether requests wait for so long (within)."""
    how = "from its image on disk" if found.rung == ON_DISK.name else "cold"
    if found.seconds is None:
        return f"{how}; the size of its weights is not known, so neither is the time that takes"
    seen = "within the" if found.kept else "later than the"
    return f"{how}: it answers after about {found.seconds:.0f} s (estimate), {seen} {within} s that requests wait"


def format_asleep(found: Asleep) -> str:
    """Say which rung, how long a swap takes, and whether that is soon enough."""
    if found.seconds is None:
        return f"{found.rung}; the size of its weights is not known, so neither is the time of a swap"
    soon = {None: "", True: ", soon enough for swap_within", False: ", later than swap_within allows"}[found.kept]
    return f"{found.rung}: it answers after about {found.seconds:.1f} s (estimate){soon}"


_AT_1, _AT_2 = (PINNED, UNPINNED, SUSPENDED, ON_DISK), (RELOADED, RELOADED_PACKED)
_LEVELS = {STOPPED.name: 0, **{each.name: 1 for each in _AT_1}, **{each.name: 2 for each in _AT_2}}


@dataclass(frozen=True)
class Levels:
    """workload: with the level of each model; stopped: models that cannot sleep, and why not."""

    workload: Workload
    stopped: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)


def levels_of(target: Target, workload: Workload, granted: AvailableMemory, fallback: str) -> Levels:
    """Choose the level of each sleeping model that states none: the first rung that memory, version and model allow
    and that meets swap_within, else the fastest. A backup of one model leaves less for the next, so those named first
    sleep at level 1. fallback: the profile without sleep.
    """
    open_ = [each.name for each in workload.models if each.sleeps and each.sleep_level is None]
    found = with_sleep_levels(workload, dict.fromkeys(open_, 0))
    stopped: dict[str, tuple[Finding, ...]] = {}
    for name in open_:
        tried = _Trial(target, found, granted, fallback, name)
        rung = choose(tried.possible, tried.weights_gib, workload.availability.swap_within).rung
        found = with_sleep_levels(found, {name: _LEVELS[rung]})
        if rung == STOPPED.name:
            stopped[name] = tuple(tried.against(1))
    return Levels(found, stopped)


def asleep_of(case: Case, granted: AvailableMemory) -> Asleep | None:
    """The rung of a model, and how long a swap to it takes; None where it takes no turns."""
    model, within = case.model, case.workload.availability.swap_within
    if not model.sleeps:
        return None
    level_1, level_2, _ = preferred(pins(case.workload, granted), reloads=True, model=model)
    rung = {0: STOPPED, 1: level_1, 2: level_2}[model.level]
    size = _whole(model)
    files = size * PACKED_PERCENT // 100 if size is not None and rung is RELOADED_PACKED else size
    ram = case.budget.at(RAM)
    cached = bool(ram and ram.margin is not None and files is not None and ram.margin >= files)
    if model.level == 2 and files is not None and not cached:
        reading = files / (DISK_RATE * GB)
        return Asleep(rung.name, reading, None if within is None else reading <= within)
    return chosen(rung, None if size is None else size / GiB, within)


def wait_of(model: Model) -> Asleep | None:
    """The return of a model that is its own standby, and whether requests wait that long; None for other models."""
    if not model.starts_anew:
        return None
    rung, size = ON_DISK if model.image and model.level == 1 else STOPPED, _whole(model)
    seconds = None if size is None else rung.start(size / GiB)
    return Asleep(rung.name, seconds, None if seconds is None else seconds <= Limits.hold)


def fit_together(workload: Workload, granted: AvailableMemory) -> bool:
    """Tell whether several models take turns that could all stay awake."""
    awake = tuple(replace(each, state=ModelState.RESIDENT) for each in workload.models)
    several = sum(each.sleeps for each in workload.models) > 1
    return several and budget(replace(workload, models=awake), granted).fits is True


def _whole(model: Model) -> Bytes | None:
    share = weights(model)
    return share.bytes * model.gpus if isinstance(share, MemoryPart) else None


@dataclass(frozen=True)
class _Trial:
    """A model whose level is being chosen, beside those whose levels are decided."""

    target: Target
    workload: Workload
    granted: AvailableMemory
    fallback: str
    name: str

    @property
    def _model(self) -> Model:
        return next(each for each in self.workload.models if each.name == self.name)

    @property
    def weights_gib(self) -> float | None:
        size = _whole(self._model)
        return None if size is None else size / GiB

    @property
    def possible(self) -> list[Rung]:
        reloads = is_safe_to_reload(self._model)
        rungs = preferred(pins(self.workload, self.granted), reloads, self._model)
        return [rung for rung in rungs if rung is STOPPED or not any(self.against(_LEVELS[rung.name]))]

    def against(self, level: int) -> Iterator[Finding]:
        """Yield the reasons against sleep of this level."""
        workload = with_sleep_levels(self.workload, {self.name: level})
        (model,) = (each for each in workload.models if each.name == self.name)
        taken = budget(workload, replace(self.granted, variant=self.target.variant))
        case = Case(self.target, workload, model, taken, self.granted.gpus, self.granted.ram)
        yield from causes_of(case, self.fallback)
