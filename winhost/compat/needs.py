"""Compares requirements with what each variant offers: which variants meet them, and which capabilities are missing."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from winhost.compat.rule import finding, with_subject
from winhost.core.dataclass import dataclass
from winhost.model.capabilities import CAPABILITIES
from winhost.model.errors import UsageError, did_you_mean, visible
from winhost.model.path import OPT_IN_VARIANTS, AvailableMemory
from winhost.model.reason import Assessment, CapabilityVerdict, Finding, PathVerdict, Verdict
from winhost.model.units import gib
from winhost.model.workload import Deploy, LoadFormat, Mirror, Model, Needs, Workload

if TYPE_CHECKING:
    from winhost.sizing.budget import Budget
    from winhost.sizing.fit import FitAdvice
    from winhost.sizing.fit_changes import Fix

__all__ = [
    "Fit",
    "NearestFit",
    "Needs",
    "check_capabilities",
    "find_nearest",
    "fit_of",
    "fit_paths",
    "merge_needs",
    "needs_of",
]

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
    """The comparison of a variant with the requirements. verdict: the worst of its own, of required capabilities and of
    conflicts; lacking: required capabilities that are not supported; missed: optional ones that are not; denied:
    conflicts with the workload; budget: of a workload, where the variant's memory is known; short: what would fit,
    where it does not.
    """

    variant: str
    verdict: Verdict
    lacking: tuple[CapabilityVerdict, ...]
    missed: tuple[CapabilityVerdict, ...]
    denied: tuple[Finding, ...] = ()
    budget: "Budget | None" = None
    short: "FitAdvice | None" = None


@dataclass(frozen=True)
class NearestFit:
    """The smallest change of a workload with which a variant fits it. verdict: of the variant, for the changed
    workload.
    """

    variant: str
    verdict: Verdict
    fix: "Fix"


def check_capabilities(needs: Iterable[str]) -> None:
    """Raise UsageError (UnknownCapability) for an unknown name."""
    for name in needs:
        if name not in CAPABILITIES:
            raise UsageError(
                "UnknownCapability",
                what=f"there is no capability '{visible(name)}'{did_you_mean(name, CAPABILITIES)}",
                hint=f"There are: {', '.join(CAPABILITIES)}",
            )


def merge_needs(must: tuple[str, ...], workload: Workload | None) -> Needs:
    """Join the capabilities that the user names with those that the workload states or implies."""
    of_workload = needs_of(workload) if workload else Needs()
    return Needs(tuple(dict.fromkeys((*must, *of_workload.must))), of_workload.nice)


def needs_of(workload: Workload) -> Needs:
    """Return the capabilities that a workload requires explicitly, and those that its models imply."""
    implied = [need for model in workload.models for need in _implied_needs(model)]
    implied += ["start-on-boot"] * workload.availability.start_on_boot
    implied += ["windows-desktop"] * workload.keep_windows_usable
    implied += [MIRRORS[workload.kv_mirror.through]] if workload.kv_mirror else []
    implied += ["video-codec"] * (workload.video is not None)
    # A single pod may have all GPUs, even if the cluster cannot assign single ones.
    pods = len(workload.models) + (workload.video is not None)
    implied += ["kubernetes-per-gpu"] * (workload.deploy is Deploy.KUBERNETES and pods > 1)
    must = tuple(dict.fromkeys(("gpu-compute", "gpu-memory", *workload.needs.must, *implied)))
    # Where a model without a chosen level cannot sleep, it is stopped between its turns.
    asleep = ["sleep-l1"] * any(model.sleeps and model.sleep_level is None for model in workload.models)
    nice = tuple(dict.fromkeys((*workload.needs.nice, *asleep)))
    return Needs(must, tuple(need for need in nice if need not in must))


def _implied_needs(model: Model) -> Iterator[str]:
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


def fit_paths(
    assessment: Assessment, needs: Needs, workload: Workload | None = None, requested: str | None = None
) -> tuple[Fit, ...]:
    """Return the fit of each path's best variant, the best first; equally good ones in the order of PATHS. Of equally
    good variants, the one that a plan chooses by default represents the path.

    requested: the only variant of its path that is considered.
    """
    variants_of_paths = [path.every_variant for path in assessment.paths]
    candidates = [[each for each in variants if each.path == requested] or variants for variants in variants_of_paths]
    fits_of_paths = ([fit_of(variant, needs, workload) for variant in variants] for variants in candidates)
    best = [min(fits, key=lambda fit: (*_rank(fit), fit.variant in OPT_IN_VARIANTS)) for fits in fits_of_paths]
    return tuple(sorted(best, key=_rank))


def fit_of(variant: PathVerdict, needs: Needs, workload: Workload | None = None) -> Fit:
    """Compare a variant with the requirements, and with the memory that a workload needs. If the workload does not fit,
    find what would.
    """
    fit = fit_without_advice(variant, needs, workload)
    if workload is None or fit.budget is None or fit.budget.fits:
        return fit
    from winhost.sizing.fit import advise_fit

    workload, memory = _plan_sleep_levels(workload, variant)
    return replace(fit, short=advise_fit(workload, memory)) if memory else fit


def fit_without_advice(variant: PathVerdict, needs: Needs, workload: Workload | None = None) -> Fit:
    """Compare a variant with the requirements, without searching for what would fit."""
    single_gpu_engines = workload is not None and all(model.engine_gpus == 1 for model in workload.models)
    adapt = _for_single_gpu_engines if single_gpu_engines else lambda offered: offered
    must, nice = ([adapt(variant.offers(name)) for name in names] for names in (needs.must, needs.nice))
    lacking = [offered for offered in must if offered.verdict is not Verdict.SUPPORTED]
    missed = tuple(offered for offered in nice if offered.verdict is not Verdict.SUPPORTED)
    found: Budget | None = None
    denied: tuple[Finding, ...] = ()
    if workload:
        from winhost.compat.workload_rules import conflicts  # with sizing: only workloads need them
        from winhost.sizing.budget import budget

        workload, memory = _plan_sleep_levels(workload, variant)
        found = budget(workload, memory) if memory else None
        lacking = _add_memory_reasons(lacking, [*_memory_reason(variant, found), *_wsl_memory_reason(variant, found)])
        denied = conflicts(workload, variant.path, found)
    verdict = Verdict.worst([variant.verdict, Verdict.of(denied), *(offered.verdict for offered in lacking)])
    return Fit(variant.path, verdict, tuple(lacking), missed, denied, found)


_MULTI_GPU_CODES = frozenset({"cuda-checkpoint.several-gpus"})  # reasons that only concern engines on several GPUs


def _for_single_gpu_engines(offered: CapabilityVerdict) -> CapabilityVerdict:
    """Return the verdict of a capability for engines that use one GPU each."""
    reasons = tuple(each for each in offered.reasons if each.code not in _MULTI_GPU_CODES)
    if len(reasons) == len(offered.reasons):
        return offered
    verdict = Verdict.of(reasons)
    return replace(offered, verdict=verdict, because=verdict.because(reasons), reasons=reasons)


def _plan_sleep_levels(workload: Workload, variant: PathVerdict) -> tuple[Workload, AvailableMemory | None]:
    """Return the workload and the memory as a plan would set them. Each model without a chosen sleep level gets level
    1, else 2 where that is safe, else 0 (it is stopped between its turns), whichever memory, variant and workload
    allow.
    """
    from winhost.compat.workload_rules import conflicts, is_safe_to_reload, with_sleep_levels
    from winhost.sizing.budget import budget
    from winhost.sizing.memories import planned_memory

    memory = variant.available_memory and planned_memory(variant.available_memory, workload)

    def rank(candidate: Workload, level: int) -> int:
        needed = budget(candidate, memory) if memory else None
        denied = Verdict.of(conflicts(candidate, variant.path, needed)) is Verdict.UNSUPPORTED
        if denied or (level and variant.offers(f"sleep-l{level}").verdict is Verdict.UNSUPPORTED):
            return 0
        return 0 if needed and needed.may_fit is False else 1 if needed and needed.fits is False else 2

    undecided = [model for model in workload.models if model.sleeps and model.sleep_level is None]
    workload = with_sleep_levels(workload, {model.name: 0 for model in undecided})
    for model in undecided:
        candidates = {level: with_sleep_levels(workload, {model.name: level}) for level in (1, 2, 0)}
        if not is_safe_to_reload(model):
            del candidates[2]
        workload = candidates[max(candidates, key=lambda level: rank(candidates[level], level))]
    return workload, memory


def find_nearest(variants: Iterable[PathVerdict], needs: Needs, workload: Workload, best: Fit) -> NearestFit | None:
    """Return the variant that fits the workload best with the smallest change of it, if that is no worse than the best
    fit without a change. None where the best fit needs no change.
    """
    if best.verdict.rank <= Verdict.DEGRADED.rank:
        return None
    found = [near for variant in variants if (near := _smallest_change(variant, needs, workload, best.verdict))]
    return min(found, key=lambda near: (near.verdict.rank, near.fix.tier, near.fix.lost_share), default=None)


def _smallest_change(variant: PathVerdict, needs: Needs, workload: Workload, best: Verdict) -> NearestFit | None:
    """Return the smallest change after which the workload fits the variant with a better verdict; None if there is
    none. A change may require more of the variant: a model that sleeps instead needs sleep mode, for example.
    """
    from winhost.sizing.fit_changes import ADVICE, apply_changes

    now = fit_of(variant, needs, workload)
    additional = [need for need in needs.must if need not in needs_of(workload).must]
    planned, memory = _plan_sleep_levels(workload, variant)
    if now.short is None or memory is None:
        return None
    for fix in now.short.fixes:
        if fix.tier >= ADVICE:
            return None
        new_workload, new_memory = apply_changes(planned, memory, fix.changes)
        new_needs = Needs((*additional, *needs_of(new_workload).must), needs.nice)
        changed = fit_without_advice(replace(variant, available_memory=new_memory), new_needs, new_workload)
        # If only the lower estimates fitted before, a change with which the upper ones fit is better.
        surer = now.budget is not None and now.budget.fits is False and changed.verdict is now.verdict
        better = surer or changed.verdict.rank < now.verdict.rank
        if better and changed.verdict.rank <= best.rank and changed.verdict is not Verdict.UNSUPPORTED:
            return NearestFit(variant.path, changed.verdict, fix)
    return None


def _memory_reason(variant: PathVerdict, found: "Budget | None") -> Iterator[Finding]:
    """Yield the reason why the workload's memory does not fit, or may not fit; none where it fits."""
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
    yield with_subject(about_memory, variant.path)


def _wsl_memory_reason(variant: PathVerdict, found: "Budget | None") -> Iterator[Finding]:
    """Yield the reason that WSL needs more memory than it gets by default; a plan can give it more."""
    memory = variant.available_memory
    ram = found.use_of("ram") if found else None
    if memory and memory.path == "wsl2" and ram and memory.ram < ram.used and ram.may_fit is not False:
        needed = f"{gib(ram.used)} of memory, and WSL gets {gib(memory.ram)} by itself"
        yield finding("gpu-memory.wsl-memory", needed, subject=variant.path)


def _add_memory_reasons(lacking: list[CapabilityVerdict], reasons: list[Finding]) -> list[CapabilityVerdict]:
    """Add the reasons of the workload's memory to those of the capability gpu-memory."""
    if not reasons:
        return lacking
    known = [reason for offered in lacking if offered.capability == "gpu-memory" for reason in offered.reasons]
    every = (*known, *reasons)
    verdict = Verdict.of(every)
    others = [offered for offered in lacking if offered.capability != "gpu-memory"]
    return [*others, CapabilityVerdict("gpu-memory", verdict, verdict.because(every), every, ())]


def _rank(fit: Fit) -> tuple[int, int]:
    return fit.verdict.rank, sum(offered.verdict.rank for offered in fit.missed)
