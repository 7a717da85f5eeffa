"""The states of a model between its turns: what each keeps in memory, how long the return takes, and the chosen one."""

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
from winhost.sizing.memories import RAM, is_pinned

MEASURED = (
    "7.6B in bf16, 14.29 GiB of weights, one H200, vLLM 0.24.0, driver 580.159.04, Linux, mostly single runs; on disk: "
    "1.75B, 3.26 GiB, one H100; packed: 5.5B, 10.24 GiB, one H200"
)
_WEIGHTS_GIB = 14.29
_LOADING = 10  # seconds of a start in which weights are loaded
PACKED_PERCENT = 70  # packed weights take at most this share of the original: docs/evidence/packed-weights.md


@dataclass(frozen=True)
class Rung:
    """A state of a model between its turns, as measured with `measured_with` GiB of weights.

    return_seconds: until it answers, fastest and slowest; leave_text: how long it takes to leave the GPU;
    leave_seconds: the slowest leave after the first one; fixed_seconds: the part of return and leave that is the same
    with any weights; ram_per_weight: host memory that it keeps, in multiples of the weights; gpu: what stays there.
    """

    name: str
    return_seconds: tuple[float, float]
    leave_text: str
    leave_seconds: float
    ram_per_weight: float
    gpu: str
    needs: str
    fixed_seconds: float = 0
    measured_with: float = _WEIGHTS_GIB

    def swap_seconds(self, weights_gib: float) -> float:
        """Estimate the time until it answers if a model of its size must leave the GPU first, in proportion to the
        weights.
        """
        total = self.return_seconds[1] + self.leave_seconds
        return self.fixed_seconds + (total - self.fixed_seconds) * weights_gib / self.measured_with

    def start_seconds(self, weights_gib: float) -> float:
        """Estimate the time until it answers if no model must leave the GPU first."""
        fixed = max(0.0, self.fixed_seconds - self.leave_seconds)
        return fixed + (self.return_seconds[1] - fixed) * weights_gib / self.measured_with


_SLEEPER_ON_GPU, _STOP_TIME = "1.8 to 2.7 GiB", "0.6 to 6 s"
_FIRST_SLEEP, _NATIVE = "12.2 to 13.8 s first, then 0.43 s", "Linux's own driver, one GPU"
AWAKE = Rung("awake", (0, 0), "-", 0, 0, "all of it", "room beside the others")
PINNED = Rung("level 1, pinned", (0.39, 0.82), _FIRST_SLEEP, 0.43, 1.95, _SLEEPER_ON_GPU, "memory stays taken")
SUSPENDED = Rung("level 1, then suspended", (1.9, 2.0), "as level 1, and 1.5 s", 1.93, 1.95, "4 MiB", _NATIVE)
ON_DISK = Rung(
    "level 1, then on disk", IMAGE_START_SECONDS, "7.7 to 14.1 s once, then 0.6 to 6 s", 6, 1.95, "nothing",
    f"{_NATIVE}, CRIU",
    measured_with=IMAGE_WEIGHTS_GIB,
)  # fmt: skip
RELOADED = Rung("level 2", (2.1, 2.3), "0.05 s", 0.05, 1.0, _SLEEPER_ON_GPU, "dense bf16, no adapters, files cached")
RELOADED_PACKED = Rung(
    "level 2, packed", (0.6, 1.04), "0.05 s", 0.05, PACKED_PERCENT / 100, _SLEEPER_ON_GPU,
    "load_format packed, dense bf16, files cached", measured_with=10.24,
)  # fmt: skip
UNPINNED = Rung(
    "level 1, not pinned",
    (2.59, 2.77),
    "9.6 to 10.2 s each time",
    10.2,
    1.0,
    _SLEEPER_ON_GPU,
    "as in WSL without pinning",
)
STOPPED = Rung(
    "stopped, caches warm", (47.2, 50.6), _STOP_TIME, 6, 0, "nothing", "nothing", fixed_seconds=50.6 + 6 - _LOADING
)
COLD = Rung("cold", (91.5, 91.5), _STOP_TIME, 6, 0, "nothing", "nothing", fixed_seconds=91.5 + 6 - _LOADING)
LADDER = (AWAKE, PINNED, SUSPENDED, RELOADED_PACKED, RELOADED, UNPINNED, ON_DISK, STOPPED, COLD)


@dataclass(frozen=True)
class TurnState:
    """The state of a model between its turns.

    rung: the name of a Rung; seconds: of a swap to the model, None where the size of its weights is not known; kept:
    the swap is within the limit of the workload, None without a limit or where the time is not known.
    """

    rung: str
    seconds: float | None
    kept: bool | None


def turn_state(rung: Rung, weights_gib: float | None, within: float | None) -> TurnState:
    """Return the state of a model on this rung. within: the limit for a swap in seconds, if there is one."""
    if weights_gib is None:
        return TurnState(rung.name, None, None)
    seconds = rung.swap_seconds(weights_gib)
    return TurnState(rung.name, seconds, None if within is None else seconds <= within)


def choose(possible: Iterable[Rung], weights_gib: float | None, within: float | None) -> TurnState:
    """Choose the first rung whose swap is within the limit, else the fastest. possible: the preferred rung first; at
    least one.
    """
    states = [turn_state(rung, weights_gib, within) for rung in possible]
    return next((each for each in states if each.kept is not False), min(states, key=lambda each: each.seconds or 0))


def preferred_rungs(pinned: bool, reloads: bool, model: Model | None = None) -> tuple[Rung, ...]:
    """Return the rungs in the order of preference. Level 1 changes no answer, so it comes before level 2.

    pinned: backups are pinned; reloads: level 2 is safe. A model is suspended or saved to disk only if the workload
    says so.
    """
    level_1 = PINNED if pinned else UNPINNED
    if model is not None and model.suspend:
        level_1 = ON_DISK if model.image else SUSPENDED
    packed = model is not None and model.load_format is LoadFormat.PACKED
    return (level_1, *([RELOADED_PACKED if packed else RELOADED] if reloads else []), STOPPED)


def format_restart(state: TurnState, within: int) -> str:
    """Say how a model starts that is its own standby, and whether requests wait that long. within: seconds that they
    wait.
    """
    how = "from its image on disk" if state.rung == ON_DISK.name else "cold"
    if state.seconds is None:
        return f"{how}; the size of its weights is not known, so neither is the time that takes"
    limit = "within the" if state.kept else "later than the"
    return f"{how}: it answers after about {state.seconds:.0f} s (estimate), {limit} {within} s that requests wait"


def format_turn_state(state: TurnState) -> str:
    """Name the rung, the time of a swap, and whether that is within the limit."""
    if state.seconds is None:
        return f"{state.rung}; the size of its weights is not known, so neither is the time of a swap"
    limit = {None: "", True: ", soon enough for swap_within", False: ", later than swap_within allows"}[state.kept]
    return f"{state.rung}: it answers after about {state.seconds:.1f} s (estimate){limit}"


_LEVEL_1, _LEVEL_2 = (PINNED, UNPINNED, SUSPENDED, ON_DISK), (RELOADED, RELOADED_PACKED)
_LEVELS = {STOPPED.name: 0, **{each.name: 1 for each in _LEVEL_1}, **{each.name: 2 for each in _LEVEL_2}}


@dataclass(frozen=True)
class Levels:
    """workload: with the level of each model; stopped: models that cannot sleep, and why not."""

    workload: Workload
    stopped: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)


def levels_of(target: Target, workload: Workload, granted: AvailableMemory, fallback: str) -> Levels:
    """Choose the level of each sleeping model that states none: the first rung that memory, version and model allow
    and that meets swap_within, else the fastest. A backup of one model leaves less memory for the next, so the models
    named first get level 1. fallback: the profile without sleep.
    """
    undecided = [each.name for each in workload.models if each.sleeps and each.sleep_level is None]
    decided = with_sleep_levels(workload, dict.fromkeys(undecided, 0))
    stopped: dict[str, tuple[Finding, ...]] = {}
    for name in undecided:
        trial = _Trial(target, decided, granted, fallback, name)
        rung = choose(trial.possible_rungs, trial.weights_gib, workload.availability.swap_within).rung
        decided = with_sleep_levels(decided, {name: _LEVELS[rung]})
        if rung == STOPPED.name:
            stopped[name] = tuple(trial.reasons_against(1))
    return Levels(decided, stopped)


def state_between_turns(case: Case, granted: AvailableMemory) -> TurnState | None:
    """Return the rung of a model and the time of a swap to it; None if it takes no turns."""
    model, within = case.model, case.workload.availability.swap_within
    if not model.sleeps:
        return None
    level_1, level_2, _ = preferred_rungs(is_pinned(case.workload, granted), reloads=True, model=model)
    rung = {0: STOPPED, 1: level_1, 2: level_2}[model.level]
    size = _weight_bytes(model)
    files = size * PACKED_PERCENT // 100 if size is not None and rung is RELOADED_PACKED else size
    ram = case.budget.use_of(RAM)
    cached = bool(ram and ram.margin is not None and files is not None and ram.margin >= files)
    if model.level == 2 and files is not None and not cached:
        reading = files / (DISK_RATE * GB)
        return TurnState(rung.name, reading, None if within is None else reading <= within)
    return turn_state(rung, None if size is None else size / GiB, within)


def restart_of(model: Model) -> TurnState | None:
    """Return how a model that is its own standby starts again, and whether requests wait that long; None for other
    models.
    """
    if not model.starts_anew:
        return None
    rung, size = ON_DISK if model.image and model.level == 1 else STOPPED, _weight_bytes(model)
    seconds = None if size is None else rung.start_seconds(size / GiB)
    return TurnState(rung.name, seconds, None if seconds is None else seconds <= Limits.hold)


def fit_together(workload: Workload, granted: AvailableMemory) -> bool:
    """Tell whether several models take turns, and would all fit awake at the same time."""
    awake = tuple(replace(each, state=ModelState.RESIDENT) for each in workload.models)
    several = sum(each.sleeps for each in workload.models) > 1
    return several and budget(replace(workload, models=awake), granted).fits is True


def _weight_bytes(model: Model) -> Bytes | None:
    """Return the bytes of the weights on all GPUs of the model."""
    share = weights(model)
    return share.bytes * model.gpus if isinstance(share, MemoryPart) else None


@dataclass(frozen=True)
class _Trial:
    """A model whose level is being chosen. workload: with the levels decided so far."""

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
        size = _weight_bytes(self._model)
        return None if size is None else size / GiB

    @property
    def possible_rungs(self) -> list[Rung]:
        reloads = is_safe_to_reload(self._model)
        rungs = preferred_rungs(is_pinned(self.workload, self.granted), reloads, self._model)
        return [rung for rung in rungs if rung is STOPPED or not any(self.reasons_against(_LEVELS[rung.name]))]

    def reasons_against(self, level: int) -> Iterator[Finding]:
        """Yield the reasons against sleep of this level."""
        workload = with_sleep_levels(self.workload, {self.name: level})
        (model,) = (each for each in workload.models if each.name == self.name)
        memory = budget(workload, replace(self.granted, variant=self.target.variant))
        case = Case(self.target, workload, model, memory, self.granted.gpus, self.granted.ram)
        yield from causes_of(case, self.fallback)
