"""Choose the rung of the ladder for each model between its turns, where the workload leaves that open."""

from collections.abc import Iterator, Mapping
from dataclasses import field, replace

from winhost.compat.capabilities.amounts import FROM_DISK, GB
from winhost.compat.target import Target
from winhost.compat.workload_rules import is_safe_to_reload, with_levels
from winhost.core.dataclass import dataclass
from winhost.gateway.gateway_settings import Limits
from winhost.model.path import AvailableMemory
from winhost.model.units import Bytes, GiB
from winhost.model.workload import (
    Model,
    ModelState,
    Workload,
)
from winhost.serving.causes import Because, causes_of
from winhost.serving.ladder import (
    ON_DISK,
    PACKED_PERCENT,
    PINNED,
    RELOADED,
    RELOADED_PACKED,
    STOPPED,
    SUSPENDED,
    UNPINNED,
    Rest,
    Rung,
    choose,
    chosen,
    preferred,
)
from winhost.serving.when import Case
from winhost.sizing.budget import Budget, budget
from winhost.sizing.engines import MemoryPart, weights
from winhost.sizing.host_memory import pins
from winhost.sizing.memory_places import RAM

_LEVELS = {PINNED: 1, UNPINNED: 1, SUSPENDED: 1, ON_DISK: 1, RELOADED: 2, RELOADED_PACKED: 2, STOPPED: 0}


@dataclass(frozen=True)
class Levels:
    """workload: with the level of each model; stopped: models that cannot sleep, and why not."""

    workload: Workload
    stopped: Mapping[str, tuple[Because, ...]] = field(default_factory=dict)


def levels_of(target: Target, workload: Workload, granted: AvailableMemory, fallback: str) -> Levels:
    """What is left open gets the first rung that memory, version and model allow and that is soon enough for
    swap_within; else the fastest of them. A backup of one model leaves less for the next: those that are named first
    sleep at level 1. fallback: the profile without sleep.
    """
    open_ = [each.name for each in workload.models if each.sleeps and each.sleep_level is None]
    found = with_levels(workload, dict.fromkeys(open_, 0))
    stopped: dict[str, tuple[Because, ...]] = {}
    for name in open_:
        tried = _Trial(target, found, granted, fallback, name)
        rung = choose(tried.possible, tried.weights_gib, workload.availability.swap_within).rung
        found = with_levels(found, {name: _LEVELS[rung]})
        if rung is STOPPED:
            stopped[name] = tried.against_level_1
    return Levels(found, stopped)


def rest_of(case: Case, granted: AvailableMemory) -> Rest | None:
    """The rung of a model, and how long a swap to it takes; None where it takes no turns."""
    model, within = case.model, case.workload.availability.swap_within
    if not model.sleeps:
        return None
    level_1, level_2, _ = preferred(pins(case.workload, granted), reloads=True, model=model)
    rung = {0: STOPPED, 1: level_1, 2: level_2}[model.level]
    size = _whole(model)
    found = chosen(rung, None if size is None else size / GiB, within)
    files = size * PACKED_PERCENT // 100 if size is not None and rung is RELOADED_PACKED else size
    if model.level == 2 and files is not None and not _cached(case.budget, files):
        reading = files / (FROM_DISK * GB)
        return Rest(rung.name, reading, None if within is None else reading <= within)
    return Rest(rung.name, found.seconds, found.kept)


def wait_of(model: Model) -> Rest | None:
    """How a model comes back that is its own standby, and whether requests wait for so long; None: it is none."""
    if not model.starts_anew:
        return None
    rung, size = ON_DISK if model.image and model.level == 1 else STOPPED, _whole(model)
    seconds = None if size is None else rung.start(size / GiB)
    return Rest(rung.name, seconds, None if seconds is None else seconds <= Limits.hold)


def fit_together(workload: Workload, granted: AvailableMemory) -> bool:
    """Tell whether several models take turns that could all stay awake."""
    awake = tuple(replace(each, state=ModelState.RESIDENT) for each in workload.models)
    several = sum(each.sleeps for each in workload.models) > 1
    return several and budget(replace(workload, models=awake), granted).fits is True


def _cached(taken: Budget, size: Bytes) -> bool:
    """Tell whether the files of its weights fit into memory."""
    ram = taken.at(RAM)
    return bool(ram and ram.margin is not None and ram.margin >= size)


def _whole(model: Model) -> Bytes | None:
    share = weights(model)
    return share.bytes * model.gpus if isinstance(share, MemoryPart) else None


@dataclass(frozen=True)
class _Trial:
    """One model, beside those whose levels are decided."""

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
        return [rung for rung in rungs if rung is STOPPED or not any(self._against(_LEVELS[rung]))]

    @property
    def against_level_1(self) -> tuple[Because, ...]:
        return tuple(self._against(1))

    def _against(self, level: int) -> Iterator[Because]:
        workload = with_levels(self.workload, {self.name: level})
        (model,) = (each for each in workload.models if each.name == self.name)
        taken = budget(workload, replace(self.granted, variant=self.target.variant))
        case = Case(self.target, workload, model, taken, self.granted.cards, self.granted.ram)
        yield from causes_of(case, self.fallback)
