"""Which models take turns on which GPUs, as settings of the gateway, and how each rests between its turns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from winhost.core.answers import Json
from winhost.serving.engine_names import unit
from winhost.serving.gateway_entries import KEEPER_SOCKET

PINNED_TIMES = 2  # a backup in pinned memory was seen to take 1.95 times the weights; one that is not, once


@dataclass(frozen=True)
class SharingModel:
    """A model that shares GPUs. Sizes in MiB, where they are known.

    vllm: its version; sleeps: False where it is stopped between its turns instead; level: of its sleep, None where the
    host's memory decides; pinned: whether its backup is;
    reloads: whether its weights can be read again while it runs: dense, bf16, no adapters, from a format that reloads.
    """

    name: str
    cards: tuple[int, ...]
    vllm: str | None = None
    sleeps: bool = True
    level: int | None = None
    pinned: bool = True
    reloads: bool = False
    suspend: bool = False
    weights: int | None = None
    awake: int | None = None
    asleep: int | None = None


def level_of(model: SharingModel, host_memory: int | None) -> int:
    """The stated one. Else 1 where its backup fits into so much of the host's memory, 2 where that is safe, or 0: stop
    it.
    """
    if not model.sleeps:
        return 0
    if model.level is not None:
        return model.level
    if host_memory is None or model.weights is None or backup(model) <= host_memory:
        return 1
    return 2 if model.reloads else 0


def backup(model: SharingModel) -> int:
    """MiB of the host's memory that its weights take while it sleeps at level 1; pinned, they stay from then on."""
    return (model.weights or 0) * (PINNED_TIMES if model.pinned else 1)


def turn_settings(
    models: Sequence[SharingModel], memory: Mapping[int, int], host_memory: int | None = None
) -> tuple[dict[str, dict[str, Json]], dict[str, Json]]:
    """Settings of each model's turns, by name, and of all turns. memory: of GPUs in MiB; host_memory: for all backups.

    A backup of one model leaves less for the next: those that are named first sleep at level 1.
    """
    of_models: dict[str, dict[str, Json]] = {}
    for model in models:
        level = level_of(model, host_memory)
        if host_memory is not None and level == 1:
            host_memory -= backup(model)
        of_models[model.name] = {"cards": list(model.cards), "unit": unit(model.name), **_between(model, level)}
        if model.awake is not None:
            of_models[model.name]["awake_mib"] = model.awake
    turns: dict[str, Json] = {"keeper": KEEPER_SOCKET}
    if memory:
        turns["memory"] = {str(card): size for card, size in sorted(memory.items())}
    return of_models, turns


def _between(model: SharingModel, level: int) -> dict[str, Json]:
    if level == 0:
        return {"between": "stop"}
    found: dict[str, Json] = {"between": "sleep", "level": level}
    if model.vllm is not None:
        found["version"] = model.vllm
    if level == 2:
        found["reloads"] = model.reloads
    if model.suspend:
        found["suspend"] = True
    if model.asleep is not None:
        found["asleep_mib"] = model.asleep
    return found
