"""Settings of models that take turns on GPUs: which GPUs, what each does between its turns, and times."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .settings_values import SOCKET, WrongSettings, flag, names_of, number, one_of, table, word

_UNIT = re.compile(r"winhost-engine-[a-z0-9-]{1,100}\.service")
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})(\.\d{1,4})?[0-9a-z.+]{0,30}")
_SAFE_SLEEP = (0, 17)  # in older versions, a request to a sleeping engine ends it
_MOST_MIB = 16_777_216
_MOST_S = 86_400
SLEEP, STOP = "sleep", "stop"
IMAGES = "/var/lib/winhost-images"
"""A folder for each engine whose process is written to disk, by the name in its unit's."""


@dataclass(frozen=True)
class ModelTurns:
    """The way in which a model shares its GPUs.

    gpus: numbers of its GPUs, as the driver counts them; between: what it does between its turns, SLEEP or STOP;
    level: of sleep; suspend: its process leaves the GPU while it sleeps; image: that process is written to disk once,
    and started from there; unit: the systemd unit that the keeper starts and stops; resident: it never leaves its GPUs
    for another model; awake_mib, asleep_mib: what it takes of each of its GPUs, if that is known.
    """

    gpus: tuple[int, ...]
    between: str = SLEEP
    level: int = 1
    suspend: bool = False
    image: bool = False
    unit: str | None = None
    resident: bool = False
    awake_mib: int | None = None
    asleep_mib: int = 0


@dataclass(frozen=True)
class TurnLimits:
    """keeper: the socket of the program that may start and stop units; memory: MiB by GPU.

    Times in seconds. stay: a model stays awake for at least this long; drain: for requests that run when a turn ends;
    swap: for an engine to fall asleep or to wake; start: for an engine to start; release: until memory is really free;
    idle: after so long without requests every model of a group leaves its GPUs, None: the last one stays.
    """

    keeper: str | None = None
    memory: Mapping[int, int] = field(default_factory=dict)
    stay: int = 5
    drain: int = 60
    swap: int = 120
    start: int = 900
    release: int = 30
    idle: int | None = None


def parse_model_turns(value: Any, where: str) -> ModelTurns:
    """Parse how a model shares its GPUs. Raises WrongSettings."""
    given = table(value, where, ("gpus",), [*names_of(ModelTurns), "version", "reloads"])
    gpus = given["gpus"]
    if not isinstance(gpus, list) or not gpus or any(type(each) is not int or not 0 <= each < 64 for each in gpus):
        raise WrongSettings(f"{where}.gpus: a list of numbers of GPUs is expected, not {gpus!r}")
    found = ModelTurns(
        gpus=tuple(sorted(set(gpus))),
        between=one_of(given.get("between", SLEEP), f"{where}.between", (SLEEP, STOP)),
        level=one_of(given.get("level", 1), f"{where}.level", (1, 2)),
        suspend=flag(given, where, "suspend"),
        image=flag(given, where, "image"),
        unit=word(given, where, "unit", _UNIT) if "unit" in given else None,
        resident=flag(given, where, "resident"),
        awake_mib=number(given, where, "awake_mib", _MOST_MIB) if "awake_mib" in given else None,
        asleep_mib=number(given, where, "asleep_mib", _MOST_MIB, 0) if "asleep_mib" in given else 0,
    )
    if found.resident and found.between == SLEEP:
        raise WrongSettings(f"{where}.resident: for between: {STOP}; it is stopped and started only where it fails")
    if found.between == SLEEP:
        _check_sleep(given, where, found)
    elif {"level", "suspend", "image", "asleep_mib"} & set(given):
        raise WrongSettings(f"{where}: level, suspend, image and asleep_mib are for between: {SLEEP}")
    if found.unit is None and (found.between == STOP or found.suspend):
        raise WrongSettings(f"{where}.unit: needed to stop the engine or to suspend it")
    return found


def _check_sleep(given: dict[str, Any], where: str, found: ModelTurns) -> None:
    if "version" not in given:
        raise WrongSettings(f"{where}.version: which version of vLLM this is has to be known to let it sleep")
    word(given, where, "version", _VERSION)
    major, minor = given["version"].split(".")[:2]
    if (int(major), int(minor)) < _SAFE_SLEEP:
        raise WrongSettings(
            f"{where}.version: before vLLM 0.17 a request to a sleeping engine ends it; between: {STOP}"
        )
    if found.level == 2 and not flag(given, where, "reloads"):
        raise WrongSettings(
            f"{where}.reloads: level 2 reads the weights again on waking, which is safe for dense models in bf16 "
            "without adapters alone, from a format that can reload; say reloads: true where this is one"
        )
    if found.image and not found.suspend:
        raise WrongSettings(
            f"{where}.image: only a process that left its GPU can be written to disk; say suspend: true"
        )
    if found.suspend and len(found.gpus) > 1:
        raise WrongSettings(f"{where}.suspend: over several GPUs nobody has seen it work")


def parse_turn_limits(value: Any) -> TurnLimits:
    """Parse the limits of turns. Raises WrongSettings."""
    given = table(value, "turns", (), names_of(TurnLimits))
    times = {name: number(given, "turns", name, _MOST_S, 0 if name == "stay" else 1)
             for name in given if name not in ("keeper", "memory")}  # fmt: skip
    memory = table(given.get("memory", {}), "turns.memory", (), [str(gpu) for gpu in range(64)])
    return TurnLimits(
        keeper=word(given, "turns", "keeper", SOCKET) if "keeper" in given else None,
        memory={int(gpu): number(memory, "turns.memory", gpu, _MOST_MIB) for gpu in memory},
        **times,
    )


def check_turns(models: Mapping[str, ModelTurns], limits: TurnLimits) -> None:
    """Check what one model's settings alone do not show. Raises WrongSettings."""
    units: dict[str, str] = {}
    for name, turns in models.items():
        if turns.unit and limits.keeper is None:
            raise WrongSettings(f"turns.keeper: the unit of {name} can be started and stopped by the keeper alone")
        if turns.unit and units.setdefault(turns.unit, name) != name:
            raise WrongSettings(f"models: {name} and {units[turns.unit]} have the same unit")
        for gpu in turns.gpus:
            if turns.awake_mib and gpu in limits.memory and turns.awake_mib > limits.memory[gpu]:
                raise WrongSettings(f"models: {name} takes more than GPU {gpu} has")


def gpu_groups(models: Mapping[str, ModelTurns]) -> list[list[str]]:
    """Models that share a GPU, or share one with a model that does. Each group takes its turns by itself."""
    groups: list[tuple[set[int], list[str]]] = []
    for name, turns in models.items():
        touching = [group for group in groups if group[0] & set(turns.gpus)]
        gpus = set(turns.gpus).union(*(group[0] for group in touching))
        names = [each for group in touching for each in group[1]]
        groups = [group for group in groups if group not in touching] + [(gpus, [*names, name])]
    return [names for _, names in groups]
