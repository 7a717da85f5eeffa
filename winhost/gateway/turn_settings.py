"""Settings of models that take turns on GPUs: their GPUs, what each model does between its turns, and times."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .settings_values import SOCKET, WrongSettings, choice, field_names, flag, matching_text, number, table

_UNIT = re.compile(r"winhost-engine-[a-z0-9-]{1,100}\.service")
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})(\.\d{1,4})?[0-9a-z.+]{0,30}")
_SAFE_SLEEP = (0, 17)  # in older versions, a request to a sleeping engine ends it
_MAX_MIB = 16_777_216
_MAX_S = 86_400
SLEEP, STOP = "sleep", "stop"
IMAGES = "/var/lib/winhost-images"
"""Has a folder for each engine whose process is written to disk, named as in its unit."""


@dataclass(frozen=True)
class ModelTurns:
    """The rules by which a model shares its GPUs.

    gpus: numbers of its GPUs, as the driver counts them; between: what it does between its turns, SLEEP or STOP;
    level: of sleep; suspend: its process leaves the GPU while it sleeps; image: that process is written to disk once,
    and started from there; unit: the systemd unit that the keeper starts and stops; resident: it never leaves its GPUs
    for another model; awake_mib, asleep_mib: the memory that it takes on each of its GPUs, if that is known.
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
    """Limits of all models that take turns. keeper: the socket of the program that starts and stops units; memory: MiB
    by GPU.

    Times in seconds. stay: a model stays awake for at least this long; drain: for requests that run when a turn ends;
    swap: for an engine to fall asleep or to wake; start: for an engine to start; release: until the driver reports the
    memory as free; idle: without requests, until every model of a group leaves its GPUs, None: the last one stays.
    """

    keeper: str | None = None
    memory: Mapping[int, int] = field(default_factory=dict)
    stay: int = 5
    drain: int = 60
    swap: int = 120
    start: int = 900
    release: int = 30
    idle: int | None = None


def parse_model_turns(value: Any, path: str) -> ModelTurns:
    """Parse how a model shares its GPUs. Raises WrongSettings."""
    values = table(value, path, ("gpus",), [*field_names(ModelTurns), "version", "reloads"])
    gpus = values["gpus"]
    if not isinstance(gpus, list) or not gpus or any(type(each) is not int or not 0 <= each < 64 for each in gpus):
        raise WrongSettings(f"{path}.gpus: a list of numbers of GPUs is expected, not {gpus!r}")
    turns = ModelTurns(
        gpus=tuple(sorted(set(gpus))),
        between=choice(values.get("between", SLEEP), f"{path}.between", (SLEEP, STOP)),
        level=choice(values.get("level", 1), f"{path}.level", (1, 2)),
        suspend=flag(values, path, "suspend"),
        image=flag(values, path, "image"),
        unit=matching_text(values, path, "unit", _UNIT) if "unit" in values else None,
        resident=flag(values, path, "resident"),
        awake_mib=number(values, path, "awake_mib", _MAX_MIB) if "awake_mib" in values else None,
        asleep_mib=number(values, path, "asleep_mib", _MAX_MIB, 0) if "asleep_mib" in values else 0,
    )
    if turns.resident and turns.between == SLEEP:
        raise WrongSettings(f"{path}.resident: for between: {STOP}; it is stopped and started only if it fails")
    if turns.between == SLEEP:
        _check_sleep(values, path, turns)
    elif {"level", "suspend", "image", "asleep_mib"} & set(values):
        raise WrongSettings(f"{path}: level, suspend, image and asleep_mib are for between: {SLEEP}")
    if turns.unit is None and (turns.between == STOP or turns.suspend):
        raise WrongSettings(f"{path}.unit: needed to stop the engine or to suspend it")
    return turns


def _check_sleep(values: dict[str, Any], path: str, turns: ModelTurns) -> None:
    if "version" not in values:
        raise WrongSettings(f"{path}.version: the version of vLLM is needed to let the engine sleep")
    matching_text(values, path, "version", _VERSION)
    major, minor = values["version"].split(".")[:2]
    if (int(major), int(minor)) < _SAFE_SLEEP:
        raise WrongSettings(f"{path}.version: before vLLM 0.17 a request to a sleeping engine ends it; between: {STOP}")
    if turns.level == 2 and not flag(values, path, "reloads"):
        raise WrongSettings(
            f"{path}.reloads: level 2 reads the weights again on waking, which is safe for dense models in bf16 "
            "without adapters alone, from a format that can reload; set reloads: true if this is one"
        )
    if turns.image and not turns.suspend:
        raise WrongSettings(f"{path}.image: only a process that left its GPU can be written to disk; set suspend: true")
    if turns.suspend and len(turns.gpus) > 1:
        raise WrongSettings(f"{path}.suspend: over several GPUs it was not tested")


def parse_turn_limits(value: Any) -> TurnLimits:
    """Parse the limits of turns. Raises WrongSettings."""
    values = table(value, "turns", (), field_names(TurnLimits))
    times = {name: number(values, "turns", name, _MAX_S, 0 if name == "stay" else 1)
             for name in values if name not in ("keeper", "memory")}  # fmt: skip
    memory = table(values.get("memory", {}), "turns.memory", (), [str(gpu) for gpu in range(64)])
    return TurnLimits(
        keeper=matching_text(values, "turns", "keeper", SOCKET) if "keeper" in values else None,
        memory={int(gpu): number(memory, "turns.memory", gpu, _MAX_MIB) for gpu in memory},
        **times,
    )


def check_turns(models: Mapping[str, ModelTurns], limits: TurnLimits) -> None:
    """Check the settings of all models together. Raises WrongSettings."""
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
    """Group models that share a GPU, directly or through other models. Each group takes its turns independently."""
    groups: list[tuple[set[int], list[str]]] = []
    for name, turns in models.items():
        touching = [group for group in groups if group[0] & set(turns.gpus)]
        gpus = set(turns.gpus).union(*(group[0] for group in touching))
        names = [each for group in touching for each in group[1]]
        groups = [group for group in groups if group not in touching] + [(gpus, [*names, name])]
    return [names for _, names in groups]
