"""The gateway's settings for models that take turns on GPUs, and the state of each between its turns."""

from collections.abc import Mapping, Sequence

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.serving.engine_names import unit
from winhost.serving.gateway_entries import KEEPER_SOCKET


@dataclass(frozen=True)
class SharingModel:
    """A model that shares GPUs. Sizes in MiB, where they are known.

    resident: it only starts anew where it fails; vllm: its version; level: of its sleep, 0 where it is stopped
    between its turns instead; reloads: whether its weights can be read again while it runs: dense, bf16, no
    adapters, from a format that reloads.
    """

    name: str
    cards: tuple[int, ...]
    vllm: str | None = None
    level: int = 1
    reloads: bool = False
    suspend: bool = False
    image: bool = False
    resident: bool = False
    awake: int | None = None
    asleep: int | None = None


def turn_settings(
    models: Sequence[SharingModel], memory: Mapping[int, int], idle: int | None = None
) -> tuple[dict[str, dict[str, Json]], dict[str, Json]]:
    """Settings of each model's turns, by name, and of all turns. memory: of GPUs in MiB; idle: seconds without requests
    until all of them leave their GPUs.
    """
    of_models: dict[str, dict[str, Json]] = {}
    for model in models:
        of_models[model.name] = {"cards": list(model.cards), "unit": unit(model.name), **_between(model)}
        if model.awake is not None:
            of_models[model.name]["awake_mib"] = model.awake
    turns: dict[str, Json] = {"keeper": KEEPER_SOCKET}
    if memory:
        turns["memory"] = {str(gpu): size for gpu, size in sorted(memory.items())}
    if idle is not None:
        turns["idle"] = idle
    return of_models, turns


def _between(model: SharingModel) -> dict[str, Json]:
    if model.level == 0:
        return {"between": "stop", **({"resident": True} if model.resident else {})}
    found: dict[str, Json] = {"between": "sleep", "level": model.level}
    if model.vllm is not None:
        found["version"] = model.vllm
    if model.level == 2:
        found["reloads"] = model.reloads
    if model.suspend:
        found["suspend"] = True
    if model.image:
        found["image"] = True
    if model.asleep is not None:
        found["asleep_mib"] = model.asleep
    return found
