"""The models of a workload that take turns on GPUs, and the gateway's settings for them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from winhost.compat.workload_rules import conflicts
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.model.errors import RefusedError, visible
from winhost.model.reason import Severity
from winhost.model.units import MiB
from winhost.model.workload import Model, Workload
from winhost.serving.choice import Served, Serving
from winhost.serving.engine_names import unit
from winhost.serving.gateway_entries import KEEPER_SOCKET
from winhost.sizing.engines import SLEEPING_PROCESS


@dataclass(frozen=True)
class SharingModel:
    """A model that shares GPUs. Sizes are in MiB, and None if not known.

    resident: it takes no turns, and only starts anew when it fails; vllm: its version; level: of its sleep, 0 if it is
    stopped between its turns instead; reloads: its weights can be read again while it runs: dense, bf16, no adapters,
    from a format that reloads.
    """

    name: str
    gpus: tuple[int, ...]
    vllm: str | None = None
    level: int = 1
    reloads: bool = False
    suspend: bool = False
    image: bool = False
    resident: bool = False
    awake: int | None = None
    asleep: int | None = None


def turn_settings(
    models: Sequence[SharingModel], idle: int | None = None
) -> tuple[dict[str, dict[str, Json]], dict[str, Json]]:
    """Return the settings of each model's turns, by name, and the settings that all turns share. idle: seconds without
    requests until all models leave their GPUs.
    """
    settings: dict[str, dict[str, Json]] = {}
    for model in models:
        between: dict[str, Json | None] = {"between": "stop", "resident": model.resident or None}
        if model.level:
            between = {
                "between": "sleep",
                "level": model.level,
                "version": model.vllm,
                "reloads": model.reloads if model.level == 2 else None,
                "suspend": model.suspend or None,
                "image": model.image or None,
                "asleep_mib": model.asleep,
            }
        values = {"gpus": list(model.gpus), "unit": unit(model.name), **between, "awake_mib": model.awake}
        settings[model.name] = {name: value for name, value in values.items() if value is not None}
    turns: dict[str, Json] = {"keeper": KEEPER_SOCKET}
    if idle is not None:
        turns["idle"] = idle
    return settings, turns


def sharing_models(models: Sequence[Model], found: Serving) -> Iterator[SharingModel]:
    """Yield the models that take turns or start anew after a failure.

    `awake` is only the share of GPU memory, which is less than what the model takes. It keeps a gateway that has just
    started from waking a model without room; the first sleep measures the exact size. One model at a time is awake.
    """
    for model, served in zip(models, found.models, strict=True):
        if not (model.sleeps or model.starts_anew):
            continue
        awake = None if served.awake is None else served.awake // MiB
        if not model.sleeps:
            yield SharingModel(model.name, served.gpus, level=0, awake=awake, resident=True)
        elif served.lost is not None:
            yield SharingModel(model.name, served.gpus, level=0, awake=awake)
        else:
            yield SharingModel(
                model.name,
                served.gpus,
                found.vllm,
                level=served.level,
                reloads=served.level == 2,
                suspend=bool(model.suspend),
                image=model.image and served.level == 1,
                awake=awake,
                asleep=SLEEPING_PROCESS // MiB,
            )


def refuse_suspending(models: Sequence[Model], host: str) -> None:
    """Refuse suspending in containers. Raises RefusedError: NoSuspend."""
    for model in (model for model in models if model.suspend):
        raise RefusedError(
            "NoSuspend",
            what=f"{visible(model.name)} cannot be suspended in a container",
            meaning="The keeper suspends the one process of an engine's unit that has a GPU, and a container's is not "
            "the unit's.",
            hint="Serve with vLLM's program (--engine-program /opt/vllm/bin/vllm), or do not ask for suspend.",
            host=host,
        )


def refuse_mirror(workload: Workload, found: Serving) -> None:
    """Refuse a mirror with a setting of the workload that is known not to work with it. Raises RefusedError:
    MirrorConflict.
    """
    if workload.kv_mirror is None:
        return
    levels = {served.model: served.level for served in found.models}
    # The levels that the workload does not state are those that were chosen.
    models = (m if m.sleep_level is not None else replace(m, chosen_level=levels[m.name]) for m in workload.models)
    for reason in conflicts(replace(workload, models=tuple(models)), found.variant, None):
        if reason.code.startswith("kv-") and reason.severity is Severity.UNSUPPORTED:
            raise RefusedError(
                "MirrorConflict",
                what=f"kv_mirror: {workload.kv_mirror.through} does not go with the rest of this workload",
                meaning=f"{reason.sentence} [{reason.code}: {reason.observed}]",
                hint=f"winhost explain {reason.code}",
                host=found.host,
            )


def resident_units(served: Served, models: Sequence[Model], found: Serving) -> tuple[str, ...]:
    """Return the units of resident models on the GPUs of this model, which start with the machine."""
    residents = (
        other for model, other in zip(models, found.models, strict=True) if not (model.sleeps or model.starts_anew)
    )
    return tuple(unit(other.model) for other in residents if {*other.gpus} & {*served.gpus})
