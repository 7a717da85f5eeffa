"""What speaks against a workload's own wishes on a way: what goes ill together, how fast it swaps, who reaches it.

As with rules, one small function has one condition and one finding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import inf

from packaging.version import Version

from winhost.compat.capability import SHARED
from winhost.compat.rule import Finding, degraded, reason_of, unsupported, unverified
from winhost.compat.swap import Swap, swaps
from winhost.model.path import path_of
from winhost.model.reason import Reason
from winhost.model.workload import Exposure, LoadFormat, Mirror, Model, Workload
from winhost.sizing.budget import Budget

VLLM_CAME_BACK = Version("0.24.0")  # with native KV offloading, measured

# Of the loaders of vLLM 0.33.0 those with get_all_weights: the default one, by all its names, and Run:ai's streamer.
RELOADING = frozenset(
    {
        *(LoadFormat.AUTO, LoadFormat.HF, LoadFormat.SAFETENSORS, LoadFormat.PT, LoadFormat.NPCACHE),
        *(LoadFormat.MISTRAL, LoadFormat.FASTSAFETENSORS, LoadFormat.INSTANTTENSOR, LoadFormat.RUNAI_STREAMER),
    }
)


@dataclass(frozen=True)
class WorkloadOnVariant:
    """A workload on a way, with its memory where that is known."""

    workload: Workload
    variant: str
    budget: Budget | None

    @property
    def sleepers(self) -> list[Model]:
        return [model for model in self.workload.models if model.sleeps]

    @property
    def droppers(self) -> list[Model]:
        """Those that sleep without their weights."""
        return [model for model in self.sleepers if model.sleep_level == 2]

    @property
    def exposed(self) -> bool:
        return self.workload.exposure is not Exposure.LOOPBACK

    @property
    def within(self) -> float:
        """Seconds until a sleeping model has to answer."""
        return self.workload.availability.swap_within or inf

    @cached_property
    def swaps(self) -> list[Swap]:
        return list(swaps(self.workload, self.budget)) if self.budget else []

    def mirrors(self, through: Mirror) -> bool:
        return self.workload.kv_mirror is not None and self.workload.kv_mirror.through is through


WorkloadRule = Callable[[WorkloadOnVariant], Finding | None]


def conflicts(workload: Workload, variant: str, budget: Budget | None) -> tuple[Reason, ...]:
    """All that speaks against it, in the order of the wishes below."""
    case = WorkloadOnVariant(workload, variant, budget)
    return tuple(reason_of(finding, variant) for check in WORKLOAD_RULES if (finding := check(case)))


def _named(models: list[Model]) -> str:
    return ", ".join(model.name for model in models)


# --- What goes ill together ----------------------------------------------------------------------------------------


def tiers_and_sleep(case: WorkloadOnVariant) -> Finding | None:
    """An engine died of it; a newer one came back, in a small case."""
    if case.mirrors(Mirror.TIERS) and case.sleepers:
        vllm = case.workload.versions.get("vllm")
        say = unverified if vllm and vllm >= VLLM_CAME_BACK else unsupported
        return say("kv-write-through.with-sleep", observed=f"tiers, and asleep: {_named(case.sleepers)}")
    return None


def lmcache_and_sleep(case: WorkloadOnVariant) -> Finding | None:
    """Who falls asleep clears the server, for all."""
    if case.mirrors(Mirror.LMCACHE) and case.sleepers and len(case.workload.models) > 1:
        others = [model for model in case.workload.models if not model.sleeps]
        beside = f", beside {_named(others)}" if others else ""
        return degraded("kv-lmcache.shared-with-sleeper", observed=f"asleep: {_named(case.sleepers)}{beside}")
    return None


def drops_what_it_cannot_reload(case: WorkloadOnVariant) -> Finding | None:
    """The recipe for waking fails at its second step."""
    stuck = [model for model in case.droppers if model.load_format not in RELOADING]
    if stuck:
        formats = ", ".join(f"{model.name} by {model.load_format}" for model in stuck)
        return unsupported("sleep-l2.cannot-reload", observed=formats)
    return None


def drops_weights_below_adapters(case: WorkloadOnVariant) -> Finding | None:
    """Reloading does not find them under their names."""
    found = [model for model in case.droppers if model.lora]
    return unsupported("sleep-l2.adapters", observed=_named(found)) if found else None


def drops_quantized_weights(case: WorkloadOnVariant) -> Finding | None:
    """Reloading them was seen to fail."""
    found = [model for model in case.droppers if model.quantization]
    if found:
        return unverified("sleep-l2.quantized", observed=", ".join(f"{m.name} in {m.quantization}" for m in found))
    return None


# --- How fast it swaps ---------------------------------------------------------------------------------------------


def swaps_too_slowly(case: WorkloadOnVariant) -> Finding | None:
    """Copies alone take longer, where they were measured; not in WSL."""
    late = [swap for swap in case.swaps if swap.best > case.within]
    if late:
        say = unverified if path_of(case.variant) in SHARED else unsupported
        slowest = max(late, key=lambda swap: swap.best)
        return say("sleep-l1.swap-too-slow", observed=f"{slowest}, requested within {case.within:.0f} s")
    return None


def swap_is_untried(case: WorkloadOnVariant) -> Finding | None:
    """As fast as was measured it does, as slow as was reported it does not."""
    doubtful = [swap for swap in case.swaps if swap.best <= case.within < swap.worst]
    if doubtful:
        slowest = max(doubtful, key=lambda swap: swap.worst)
        return unverified("sleep-l1.swap-untried", observed=f"{slowest}, requested within {case.within:.0f} s")
    return None


# --- Where it is reached from --------------------------------------------------------------------------------------


def reached_through_nat(case: WorkloadOnVariant) -> Finding | None:
    """Windows has to forward it."""
    if case.exposed and case.variant == "wsl2/nat":
        return degraded("wsl2.nat-exposed", observed=f"exposure {case.workload.exposure}")
    return None


def reached_through_windows(case: WorkloadOnVariant) -> Finding | None:
    """By its address, behind a firewall of its own."""
    if case.exposed and case.variant == "wsl2/mirrored":
        return degraded("wsl2.mirrored-exposed", observed=f"exposure {case.workload.exposure}")
    return None


def published_to_loopback(case: WorkloadOnVariant) -> Finding | None:
    """Unless an address stands before the port."""
    if case.exposed and case.variant == "wslc":
        return degraded("wslc.loopback", observed=f"exposure {case.workload.exposure}")
    return None


WORKLOAD_RULES: tuple[WorkloadRule, ...] = (
    *(tiers_and_sleep, lmcache_and_sleep, drops_what_it_cannot_reload),
    *(drops_weights_below_adapters, drops_quantized_weights),
    *(swaps_too_slowly, swap_is_untried),
    *(reached_through_nat, reached_through_windows, published_to_loopback),
)
