"""The models of a workload that take turns on GPUs, and those that are there beside them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from winhost.compat.workload_rules import conflicts
from winhost.model.errors import RefusedError, visible
from winhost.model.reason import Severity
from winhost.model.units import MiB
from winhost.model.workload import Model, Workload
from winhost.serving.choice import Served, Serving
from winhost.serving.engine_names import unit
from winhost.serving.turn_entries import SharingModel
from winhost.sizing.engines import SLEEPING_PROCESS


def sharing_models(models: Sequence[Model], found: Serving) -> Iterator[SharingModel]:
    """Those that take turns, or start anew where they fail. A profile without sleep was chosen where it is not safe;
    else level 2 is.

    Of what one takes when it is awake its share is stated, which is less, so that a gateway that has just started wakes
    none without room; the rest is measured by its first sleep. One at a time is awake.
    """
    for model, served in zip(models, found.models, strict=True):
        if not (model.sleeps or model.starts_anew):
            continue
        awake = None if served.awake is None else served.awake // MiB
        if not model.sleeps:
            yield SharingModel(model.name, served.cards, level=0, awake=awake, resident=True)
        elif served.lost is not None:
            yield SharingModel(model.name, served.cards, level=0, awake=awake)
        else:
            yield SharingModel(
                model.name,
                served.cards,
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
    """A mirror beside what is known to break it, or to be broken by it. Raises RefusedError: MirrorConflict."""
    if workload.kv_mirror is None:
        return
    levels = {served.model: served.level for served in found.models}
    # What the workload leaves open was decided so that it does not break.
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


def residents_beside(served: Served, models: Sequence[Model], found: Serving) -> tuple[str, ...]:
    """Units of engines that start with the machine, on its GPUs."""
    residents = (
        other for model, other in zip(models, found.models, strict=True) if not (model.sleeps or model.starts_anew)
    )
    return tuple(unit(other.model) for other in residents if {*other.cards} & {*served.cards})
