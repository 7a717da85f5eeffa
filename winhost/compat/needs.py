"""Compares requirements with what each variant offers: which variants meet them, and what they lack."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from winhost.compat.rule import about_subject, finding
from winhost.core.dataclass import dataclass
from winhost.model.capabilities import CAPABILITIES
from winhost.model.errors import UsageError, did_you_mean, visible
from winhost.model.path import ON_REQUEST, AvailableMemory
from winhost.model.reason import Assessment, CapabilityVerdict, Finding, PathVerdict, Verdict
from winhost.model.units import gib
from winhost.model.workload import (
    Deploy,
    LoadFormat,
    Mirror,
    Model,
    Needs,
    Workload,
)

if TYPE_CHECKING:
    from winhost.sizing.budget import Budget
    from winhost.sizing.fit import FitAdvice
    from winhost.sizing.fit_changes import Fix

__all__ = ["Fit", "Nearest", "Needs", "check", "fit_of", "fits", "nearest", "needs_of", "wanted"]

MIRRORS = {Mirror.TIERS: "kv-write-through", Mirror.LMCACHE: "kv-lmcache"}
LOADERS = {
    LoadFormat.SHARDED_STATE: "sharded-state",
    LoadFormat.TENSORIZER: "tensorizer",
    LoadFormat.FASTSAFETENSORS: "streaming-loaders",
    LoadFormat.INSTANTTENSOR: "streaming-loaders",
    LoadFormat.RUNAI_STREAMER: "streaming-loaders",
    LoadFormat.RUNAI_STREAMER_SHARDED: "streaming-loaders",
    LoadFormat.PACKED: "compressed-checkpoints",
}


@dataclass(frozen=True)
class Fit:
    """A variant against the requirements. verdict: the worst of its own, of required capabilities and of conflicts;
    lacking: required capabilities that are not supported; missed: optional ones that are not; denied: conflicts with
    the workload; budget, short: of a workload, where there is one and the variant's memory is known.
    """

    variant: str
    verdict: Verdict
    lacking: tuple[CapabilityVerdict, ...]
    missed: tuple[CapabilityVerdict, ...]
    denied: tuple[Finding, ...] = ()
    budget: "Budget | None" = None
    short: "FitAdvice | None" = None


@dataclass(frozen=True)
class Nearest:
    """The smallest change of a workload with which a variant fits it. verdict: of the variant, for the changed
    workload.
    """

    variant: str
    verdict: Verdict
    fix: "Fix"


def check(needs: Iterable[str]) -> None:
    """Raises UsageError (UnknownCapability) for a name that no capability has."""
    for name in needs:
        if name not in CAPABILITIES:
            raise UsageError(
                "UnknownCapability",
                what=f"there is no capability '{visible(name)}'{did_you_mean(name, CAPABILITIES)}",
                hint=f"There are: {', '.join(CAPABILITIES)}",
            )


def wanted(must: tuple[str, ...], workload: Workload | None) -> Needs:
    """Join the capabilities that the user names with those that the workload states or implies."""
    ours = needs_of(workload) if workload else Needs()
    return Needs(tuple(dict.fromkeys((*must, *ours.must))), ours.nice)


def needs_of(workload: Workload) -> Needs:
    """Return the capabilities that a workload requires explicitly, and those that its models imply."""
    implied = [need for model in workload.models for need in _implied(model)]
    implied += ["start-on-boot"] * workload.availability.start_on_boot
    implied += ["windows-desktop"] * workload.keep_windows_usable
    implied += [MIRRORS[workload.kv_mirror.through]] if workload.kv_mirror else []
    implied += ["video-codec"] * (workload.video is not None)
    # A single pod may have all GPUs, where the cluster cannot tell them apart.
    pods = len(workload.models) + (workload.video is not None)
    implied += ["kubernetes-per-gpu"] * (workload.deploy is Deploy.KUBERNETES and pods > 1)
    must = tuple(dict.fromkeys(("gpu-compute", "gpu-memory", *workload.needs.must, *implied)))
    # A model that leaves its level open is stopped between its turns where it cannot sleep.
    asleep = ["sleep-l1"] * any(model.sleeps and model.sleep_level is None for model in workload.models)
    nice = tuple(dict.fromkeys((*workload.needs.nice, *asleep)))
    return Needs(must, tuple(need for need in nice if need not in must))


def _implied(model: Model) -> Iterator[str]:
    yield from (f"{way}-parallel" for way in ("tensor", "pipeline", "data") if getattr(model.parallel, way) > 1)
    if model.engine_gpus > 1:
        yield "multi-gpu"
    if model.load_format in LOADERS:
        yield LOADERS[model.load_format]
    if model.sleeps and model.level and model.sleep_level is not None:
        yield f"sleep-l{model.level}"
    if model.suspend:
        yield "cuda-checkpoint"
    if model.image:
        yield "criu"
    if model.sleeps and model.parallel.data > 1:
        yield "sleep-data-parallel"


def fits(
    assessment: Assessment, needs: Needs, workload: Workload | None = None, asked: str | None = None
) -> tuple[Fit, ...]:
    """Each path by the best of its variants, the best fit first; equally good ones in the order of PATHS. Of equally
    good variants the one that a plan takes by itself stands for its path.

    asked: a variant by which its path is judged alone.
    """
    every = [path.every_variant for path in assessment.paths]
    open_ = [[each for each in variants if each.path == asked] or variants for variants in every]
    found = ([fit_of(variant, needs, workload) for variant in variants] for variants in open_)
    best = [min(fits, key=lambda fit: (*_rank(fit), fit.variant in ON_REQUEST)) for fits in found]
    return tuple(sorted(best, key=_rank))


def fit_of(variant: PathVerdict, needs: Needs, workload: Workload | None = None) -> Fit:
    """A variant against the requirements and the memory that a workload needs; where it does not fit, what would."""
    fit = fit_as_it_is(variant, needs, workload)
    if workload is None or fit.budget is None or fit.budget.fits:
        return fit
    from winhost.sizing.fit import advise_fit

    workload, memory = _as_planned(workload, variant)
    return replace(fit, short=advise_fit(workload, memory)) if memory else fit


def fit_as_it_is(variant: PathVerdict, needs: Needs, workload: Workload | None = None) -> Fit:
    """A variant against the requirements, without searching for what would fit."""
    one_each = workload is not None and all(model.engine_gpus == 1 for model in workload.models)
    offered_of = _of_one_gpu if one_each else lambda offered: offered
    must, nice = ([offered_of(variant.offers(name)) for name in names] for names in (needs.must, needs.nice))
    lacking = [offered for offered in must if offered.verdict is not Verdict.SUPPORTED]
    missed = tuple(offered for offered in nice if offered.verdict is not Verdict.SUPPORTED)
    found: Budget | None = None
    denied: tuple[Finding, ...] = ()
    if workload:
        from winhost.compat.workload_rules import conflicts  # with sizing: only workloads need them
        from winhost.sizing.budget import budget

        workload, memory = _as_planned(workload, variant)
        found = budget(workload, memory) if memory else None
        lacking = _with_memory(lacking, [*_memory(variant, found), *_wsl_memory(variant, found)])
        denied = conflicts(workload, variant.path, found)
    verdict = Verdict.worst([variant.verdict, Verdict.of(denied), *(offered.verdict for offered in lacking)])
    return Fit(variant.path, verdict, tuple(lacking), missed, denied, found)


_OVER_SEVERAL = frozenset({"cuda-checkpoint.several-gpus"})  # reasons of the host's GPUs that one engine has to span


def _of_one_gpu(offered: CapabilityVerdict) -> CapabilityVerdict:
    """A capability for engines on one GPU each."""
    reasons = tuple(each for each in offered.reasons if each.code not in _OVER_SEVERAL)
    if len(reasons) == len(offered.reasons):
        return offered
    verdict = Verdict.of(reasons)
    return replace(offered, verdict=verdict, because=verdict.because(reasons), reasons=reasons)


def _as_planned(workload: Workload, variant: PathVerdict) -> tuple[Workload, AvailableMemory | None]:
    """Return the workload and memory as a plan would set them, with a sleep level for each model that leaves it open:
    1, else 2 where that is safe, else none (the model is stopped between its turns), by the memory, the option and the
    workload.
    """
    from winhost.compat.workload_rules import conflicts, is_safe_to_reload, with_levels
    from winhost.sizing.budget import budget
    from winhost.sizing.memories import planned_memory

    memory = variant.available_memory and planned_memory(variant.available_memory, workload)

    def rank(tried: Workload, level: int) -> int:
        found = budget(tried, memory) if memory else None
        denied = Verdict.of(conflicts(tried, variant.path, found)) is Verdict.UNSUPPORTED
        if denied or (level and variant.offers(f"sleep-l{level}").verdict is Verdict.UNSUPPORTED):
            return 0
        return 0 if found and found.may_fit is False else 1 if found and found.fits is False else 2

    open_ = [each for each in workload.models if each.sleeps and each.sleep_level is None]
    workload = with_levels(workload, {each.name: 0 for each in open_})
    for each in open_:
        tries = {level: with_levels(workload, {each.name: level}) for level in (1, 2, 0)}
        if not is_safe_to_reload(each):
            del tries[2]
        workload = tries[max(tries, key=lambda level: rank(tries[level], level))]
    return workload, memory


def nearest(variants: Iterable[PathVerdict], needs: Needs, workload: Workload, best: Fit) -> Nearest | None:
    """Return the variant that fits the workload best with the smallest change of it, if that is no worse than the best
    fit without a change. None where the best fit needs no change.
    """
    if best.verdict.rank <= Verdict.DEGRADED.rank:
        return None
    found = [near for variant in variants if (near := _nearest_by(variant, needs, workload, best.verdict))]
    return min(found, key=lambda near: (near.verdict.rank, near.fix.tier, near.fix.lost), default=None)


def _nearest_by(variant: PathVerdict, needs: Needs, workload: Workload, best: Verdict) -> Nearest | None:
    """The change must improve the verdict as well: a model that sleeps instead needs sleep mode, for example."""
    from winhost.sizing.fit_changes import ADVICE, applied

    now = fit_of(variant, needs, workload)
    besides = [need for need in needs.must if need not in needs_of(workload).must]
    planned, memory = _as_planned(workload, variant)
    if now.short is None or memory is None:
        return None
    for fix in now.short.fixes:
        if fix.tier >= ADVICE:
            return None
        after, more = applied(planned, memory, fix.changes)
        wished = Needs((*besides, *needs_of(after).must), needs.nice)
        changed = fit_as_it_is(replace(variant, available_memory=more), wished, after)
        # Where only the lower ends fitted, a change that the upper ends fit is better, whatever else is not known.
        surer = now.budget is not None and now.budget.fits is False and changed.verdict is now.verdict
        better = surer or changed.verdict.rank < now.verdict.rank
        if better and changed.verdict.rank <= best.rank and changed.verdict is not Verdict.UNSUPPORTED:
            return Nearest(variant.path, changed.verdict, fix)
    return None


def _memory(variant: PathVerdict, found: "Budget | None") -> Iterator[Finding]:
    """The reason of the workload's memory; none where it fits."""
    if found and found.fits:
        return
    if found is None:
        about_memory = finding("gpu-memory.room-unknown", f"the memory that {variant.path} provides is not known")
    elif found.fits is None:
        lacking = "; ".join(found.unknown_values())
        about_memory = finding("gpu-memory.fit-unknown", lacking or "whether everything can be placed")
    elif found.may_fit is False:
        few = f"too few GPUs for {', '.join(found.placement.homeless)}" if found.placement.homeless else "too few GPUs"
        full = ", ".join(memory.where for memory in found.memories if memory.may_fit is False) or few
        about_memory = finding("gpu-memory.does-not-fit", f"not enough memory in: {full}")
    else:
        about_memory = finding("gpu-memory.may-fit", "; ".join(found.uncertain_memories()))
    yield about_subject(about_memory, variant.path)


def _wsl_memory(variant: PathVerdict, found: "Budget | None") -> Iterator[Finding]:
    """The memory that WSL gets by default is not enough, and a plan can give it more."""
    memory = variant.available_memory
    ram = found.use_of("ram") if found else None
    if memory and memory.path == "wsl2" and ram and memory.ram < ram.used and ram.may_fit is not False:
        needed = f"{gib(ram.used)} of memory, and WSL gets {gib(memory.ram)} by itself"
        yield finding("gpu-memory.wsl-memory", needed, subject=variant.path)


def _with_memory(lacking: list[CapabilityVerdict], reasons: list[Finding]) -> list[CapabilityVerdict]:
    """Adds the reasons of the workload's memory to those of the capability gpu-memory."""
    if not reasons:
        return lacking
    said = [known for offered in lacking if offered.capability == "gpu-memory" for known in offered.reasons]
    every = (*said, *reasons)
    verdict = Verdict.of(every)
    others = [offered for offered in lacking if offered.capability != "gpu-memory"]
    return [*others, CapabilityVerdict("gpu-memory", verdict, verdict.because(every), every, ())]


def _rank(fit: Fit) -> tuple[int, int]:
    return fit.verdict.rank, sum(offered.verdict.rank for offered in fit.missed)
