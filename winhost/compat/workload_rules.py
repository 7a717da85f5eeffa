"""Rules about a workload on a variant: combinations that fail, swap times, and network access.

As with other rules, one small function has one condition and one finding.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from math import inf

from packaging.version import Version

from winhost.compat.capability import NATIVE, SHARED
from winhost.compat.rule import Finding, degraded, reason_of, unsupported, unverified
from winhost.compat.swap import Swap, swaps
from winhost.core.dataclass import dataclass
from winhost.model.path import path_of
from winhost.model.reason import Reason
from winhost.model.workload import Deploy, DType, Exposure, LoadFormat, Mirror, Model, Workload, is_folder
from winhost.sizing.budget import Budget

DRIVER_SUSPENDS_SHARED = Version("610")  # NVIDIA/cuda-checkpoint #56
VLLM_CAME_BACK = Version("0.24.0")  # with native KV offloading, measured
VLLM_SLEPT_IN_STEP = Version("0.24.0")  # over two GPUs with its own all-reduce, measured

# Of the loaders of vLLM 0.33.0 those with get_all_weights: the default one, by all its names, and Run:ai's streamer.
RELOADING = frozenset(
    {
        *(LoadFormat.AUTO, LoadFormat.HF, LoadFormat.SAFETENSORS, LoadFormat.PT, LoadFormat.NPCACHE),
        *(LoadFormat.MISTRAL, LoadFormat.FASTSAFETENSORS, LoadFormat.INSTANTTENSOR, LoadFormat.RUNAI_STREAMER),
    }
)


# Of the formats those that no hub's repository has by itself: somebody converts the weights for them first.
CONVERTED = (LoadFormat.SHARDED_STATE, LoadFormat.RUNAI_STREAMER_SHARDED, LoadFormat.TENSORIZER)


def is_safe_to_reload(model: Model) -> bool:
    """Whether level 2 was shown to give the same answers for such a model."""
    plain = model.dense and model.dtype is DType.BFLOAT16 and model.quantization is None and model.lora is None
    return plain and model.load_format in RELOADING and not model.suspend


def with_levels(workload: Workload, levels: Mapping[str, int]) -> Workload:
    """The same with these levels of sleep, by name of model."""
    models = (replace(each, chosen_level=levels.get(each.name, each.level)) for each in workload.models)
    return replace(workload, models=tuple(models))


@dataclass(frozen=True)
class WorkloadOnVariant:
    """A workload on a variant, with its memory budget where that is known."""

    workload: Workload
    variant: str
    budget: Budget | None

    @property
    def sleepers(self) -> list[Model]:
        return [model for model in self.workload.models if model.sleeps and model.level]

    @property
    def droppers(self) -> list[Model]:
        """Models that sleep without their weights (level 2)."""
        return [model for model in self.sleepers if model.level == 2]

    @property
    def exposed(self) -> bool:
        return self.workload.exposure is not Exposure.LOOPBACK

    @property
    def within(self) -> float:
        """Seconds within which a sleeping model has to answer."""
        return self.workload.availability.swap_within or inf

    @cached_property
    def swaps(self) -> list[Swap]:
        return list(swaps(self.workload, self.budget)) if self.budget else []

    def mirrors(self, through: Mirror) -> bool:
        return self.workload.kv_mirror is not None and self.workload.kv_mirror.through is through


WorkloadRule = Callable[[WorkloadOnVariant], Finding | None]


def conflicts(workload: Workload, variant: str, budget: Budget | None) -> tuple[Reason, ...]:
    """All findings against the workload, in the order of WORKLOAD_RULES."""
    case = WorkloadOnVariant(workload, variant, budget)
    return tuple(reason_of(finding, variant) for check in WORKLOAD_RULES if (finding := check(case)))


def _named(models: list[Model]) -> str:
    return ", ".join(model.name for model in models)


# --- Combinations --------------------------------------------------------------------------------------------------


def tiers_and_sleep(case: WorkloadOnVariant) -> Finding | None:
    """KV tiers together with sleep mode crashed an engine; newer versions worked in a small test."""
    if case.mirrors(Mirror.TIERS) and case.sleepers:
        vllm = case.workload.versions.get("vllm")
        say = unverified if vllm and vllm >= VLLM_CAME_BACK else unsupported
        return say("kv-write-through.with-sleep", observed=f"tiers, and asleep: {_named(case.sleepers)}")
    return None


def lmcache_and_sleep(case: WorkloadOnVariant) -> Finding | None:
    """An engine that falls asleep clears its LMCache server for all engines."""
    if case.mirrors(Mirror.LMCACHE) and case.sleepers and len(case.workload.models) > 1:
        others = [model for model in case.workload.models if not model.sleeps]
        beside = f", beside {_named(others)}" if others else ""
        return degraded("kv-lmcache.shared-with-sleeper", observed=f"asleep: {_named(case.sleepers)}{beside}")
    return None


def lmcache_and_suspend(case: WorkloadOnVariant) -> Finding | None:
    """The driver cannot suspend a process whose memory another one maps, before 610."""
    found = [model for model in case.sleepers if model.suspend]
    driver = case.workload.versions.get("driver")
    if case.mirrors(Mirror.LMCACHE) and found and (driver is None or driver < DRIVER_SUSPENDS_SHARED):
        return unsupported("kv-lmcache.suspended", observed=f"suspended: {_named(found)}")
    return None


def shares_weights_and_sleeps(case: WorkloadOnVariant) -> Finding | None:
    """Weights that a cache daemon holds for several engines cannot be taken off the GPU by one of them."""
    found = [model for model in case.sleepers if model.load_format is LoadFormat.IPC_CACHE]
    return unsupported("sleep-l1.weight-cache", observed=_named(found)) if found else None


def loads_what_nobody_converted(case: WorkloadOnVariant) -> Finding | None:
    """vLLM accepts the format, and fails where the repository has no files of it."""
    found = [model for model in case.workload.models if model.load_format in CONVERTED and not is_folder(model.id)]
    if found:
        formats = ", ".join(f"{model.id} by {model.load_format}" for model in found)
        return unverified("sharded-state.unconverted", observed=formats)
    return None


def sleeps_with_its_own_all_reduce(case: WorkloadOnVariant) -> Finding | None:
    """Sleep mode with vLLM's own all-reduce between peers, before the version in which both were seen to work."""
    found = [model for model in case.sleepers if model.parallel.tensor > 1]
    vllm = case.workload.versions.get("vllm")
    if path_of(case.variant) in NATIVE and found and (vllm is None or vllm < VLLM_SLEPT_IN_STEP):
        observed = f"{_named(found)}, vLLM {vllm}" if vllm else f"{_named(found)}, and no version of vLLM is stated"
        return degraded("sleep-l1.own-all-reduce", observed=observed)
    return None


def drops_what_it_cannot_reload(case: WorkloadOnVariant) -> Finding | None:
    """Level 2 needs a loader that can reload all weights."""
    stuck = [model for model in case.droppers if model.load_format not in RELOADING]
    if stuck:
        formats = ", ".join(f"{model.name} by {model.load_format}" for model in stuck)
        return unsupported("sleep-l2.cannot-reload", observed=formats)
    return None


def drops_weights_below_adapters(case: WorkloadOnVariant) -> Finding | None:
    """Reloading after level 2 fails with LoRA adapters."""
    found = [model for model in case.droppers if model.lora]
    return unsupported("sleep-l2.adapters", observed=_named(found)) if found else None


def drops_quantized_weights(case: WorkloadOnVariant) -> Finding | None:
    """Reloading quantized weights after level 2 was seen to fail."""
    found = [model for model in case.droppers if model.quantization]
    if found:
        return unverified("sleep-l2.quantized", observed=", ".join(f"{m.name} in {m.quantization}" for m in found))
    return None


def too_few_for_pods(case: WorkloadOnVariant) -> Finding | None:
    """Kubernetes gives no GPU to two pods."""
    if case.workload.deploy is not Deploy.KUBERNETES or case.budget is None:
        return None
    asked = sum(model.gpus for model in case.workload.models) + (case.workload.video is not None)
    there = sum(place.card is not None for place in case.budget.places)
    if asked > there:
        return unsupported("kubernetes-per-gpu.too-few", observed=f"pods ask for {asked} GPU(s), and there are {there}")
    return None


# --- Swap time -----------------------------------------------------------------------------------------------------


def swaps_too_slowly(case: WorkloadOnVariant) -> Finding | None:
    """Copies alone take longer than allowed at the fastest rates measured; WSL was not measured."""
    late = [swap for swap in case.swaps if swap.best > case.within]
    if late:
        say = unverified if path_of(case.variant) in SHARED else unsupported
        slowest = max(late, key=lambda swap: swap.best)
        return say("sleep-l1.swap-too-slow", observed=f"{slowest}, requested within {case.within:.0f} s")
    return None


def swap_is_untried(case: WorkloadOnVariant) -> Finding | None:
    """The swap is in time at the fastest rates measured, and not at the slowest reported."""
    doubtful = [swap for swap in case.swaps if swap.best <= case.within < swap.worst]
    if doubtful:
        slowest = max(doubtful, key=lambda swap: swap.worst)
        return unverified("sleep-l1.swap-untried", observed=f"{slowest}, requested within {case.within:.0f} s")
    return None


# --- Network access ------------------------------------------------------------------------------------------------


def reached_through_nat(case: WorkloadOnVariant) -> Finding | None:
    """Behind NAT, other machines need ports that Windows forwards."""
    if case.exposed and case.variant == "wsl2/nat":
        return degraded("wsl2.nat-exposed", observed=f"exposure {case.workload.exposure}")
    return None


def reached_through_windows(case: WorkloadOnVariant) -> Finding | None:
    """With mirrored networking, other machines use Windows' address through the Hyper-V firewall."""
    if case.exposed and case.variant == "wsl2/mirrored":
        return degraded("wsl2.mirrored-exposed", observed=f"exposure {case.workload.exposure}")
    return None


def published_to_loopback(case: WorkloadOnVariant) -> Finding | None:
    """wslc publishes ports on loopback unless an address is given."""
    if case.exposed and case.variant == "wslc":
        return degraded("wslc.loopback", observed=f"exposure {case.workload.exposure}")
    return None


WORKLOAD_RULES: tuple[WorkloadRule, ...] = (
    *(tiers_and_sleep, lmcache_and_sleep, lmcache_and_suspend, sleeps_with_its_own_all_reduce),
    *(shares_weights_and_sleeps, loads_what_nobody_converted, drops_what_it_cannot_reload),
    *(drops_weights_below_adapters, drops_quantized_weights, too_few_for_pods),
    *(swaps_too_slowly, swap_is_untried),
    *(reached_through_nat, reached_through_windows, published_to_loopback),
)
