"""Judges of a workload on a variant: combinations that fail, and swap times."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import Any

from packaging.version import Version

from winhost.compat.common import InstanceAnswers
from winhost.compat.rule import WORKLOAD, finding, limit_to_evidence, rules, with_subject
from winhost.compat.swap import IMAGE_START_SECONDS, IMAGE_WEIGHTS_GIB, START_SECONDS, Swap, swaps
from winhost.core.dataclass import dataclass
from winhost.knowledge.versions import describe_newer_line, subjects_with_lines
from winhost.model.path import SHARED_GPU_PATHS, path_of
from winhost.model.reason import Finding, Severity
from winhost.model.workload import Deploy, DType, Exposure, LoadFormat, Mirror, Model, Workload, is_folder
from winhost.sizing.budget import Budget
from winhost.sizing.memories import is_first_v1

FIRST_VLLM_WAKING_WITH_OFFLOAD = Version("0.24.0")  # with native KV offloading, measured

# The loaders of vLLM 0.33.0 that have get_all_weights (the default one, by all its names, and Run:ai's streamer), and
# the loader of winhost.
RELOADING_FORMATS = frozenset(
    {
        *(LoadFormat.AUTO, LoadFormat.HF, LoadFormat.SAFETENSORS, LoadFormat.PT, LoadFormat.NPCACHE),
        *(LoadFormat.MISTRAL, LoadFormat.FASTSAFETENSORS, LoadFormat.INSTANTTENSOR, LoadFormat.RUNAI_STREAMER),
        LoadFormat.PACKED,
    }
)


def needs_conversion(model: Model) -> bool:
    """Tell whether the weights must be converted first: no repository of a hub has this format."""
    formats = (LoadFormat.SHARDED_STATE, LoadFormat.RUNAI_STREAMER_SHARDED, LoadFormat.TENSORIZER)
    return model.load_format in formats and not is_folder(model.id)


MODEL_QUESTIONS: Mapping[str, Callable[[Model], Any]] = {
    "reloads": lambda model: model.load_format in RELOADING_FORMATS,
    "unconverted": needs_conversion,
}


def is_safe_to_reload(model: Model) -> bool:
    """Tell whether a model like this was shown to give the same answers after level 2."""
    plain = model.dense and model.dtype is DType.BFLOAT16 and model.quantization is None and model.lora is None
    return plain and model.load_format in RELOADING_FORMATS and not model.suspend


def with_sleep_levels(workload: Workload, levels: Mapping[str, int]) -> Workload:
    """Return a copy of a workload with these sleep levels, by name of model."""
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
    def packed(self) -> list[Model]:
        return [model for model in self.workload.models if model.load_format is LoadFormat.PACKED]

    @property
    def with_standby(self) -> list[Model]:
        return [model for model in self.workload.models if model.name in self.workload.availability.standby]

    @property
    def starting_anew(self) -> list[Model]:
        """Models that are their own standby, and start when it is needed."""
        anew = self.budget.anew if self.budget else ()
        return [model for model in self.with_standby if model.sleeps or model.name in anew]

    @property
    def with_second_engine(self) -> list[Model]:
        return [model for model in self.with_standby if model not in self.starting_anew]

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

    @property
    def exposure(self) -> Exposure:
        return self.workload.exposure

    @property
    def deploy(self) -> Deploy | None:
        return self.workload.deploy

    @property
    def mirror(self) -> Mirror | None:
        return self.workload.kv_mirror.through if self.workload.kv_mirror else None

    @property
    def vllm(self) -> Version | None:
        return self.workload.versions.get("vllm")

    @property
    def driver(self) -> Version | None:
        return self.workload.versions.get("driver")

    def __getitem__(self, question: str) -> Any:
        return getattr(self, question)

    def among(self, group: str) -> list[InstanceAnswers]:
        """Return the models that rows choose from: all (`models`), or a property of this class."""
        models = self.workload.models if group == "models" else getattr(self, group)
        return [InstanceAnswers(each, {}, MODEL_QUESTIONS, each) for each in models]


def conflicts(workload: Workload, variant: str, budget: Budget | None) -> tuple[Finding, ...]:
    """Return all findings against the workload, in the order of the catalogue."""
    case = WorkloadOnVariant(workload, variant, budget)
    applying = [rule for rule in rules() if rule.subject_kind is WORKLOAD and rule.applies_to(variant)]
    outcomes = ((rule, rule.judge(case)) for rule in applying)
    found = (rule.to_finding(outcome, path_of(variant)) for rule, outcome in outcomes if outcome is not None)
    host = tuple((name, str(version)) for name, version in workload.versions.items() if name in subjects_with_lines())
    return tuple(with_subject(limit_to_evidence(each, host), variant) for each in found if each)


def _model_names(models: list[Model]) -> str:
    return ", ".join(model.name for model in models)


# --- Versions of vLLM ------------------------------------------------------------------------------------------------


def vllm_newer_than_known(case: WorkloadOnVariant) -> str | None:
    return describe_newer_line("vLLM", str(case.vllm)) if case.vllm else None


def first_v1_vllm(case: WorkloadOnVariant) -> str | None:
    return f"vLLM {case.vllm}" if is_first_v1(case.vllm) else None


# --- Combinations --------------------------------------------------------------------------------------------------


def kv_tiers_with_sleep(case: WorkloadOnVariant) -> Finding | None:
    if case.sleepers:
        severity = (
            Severity.UNVERIFIED if case.vllm and case.vllm >= FIRST_VLLM_WAKING_WITH_OFFLOAD else Severity.UNSUPPORTED
        )
        return finding("kv-write-through.with-sleep", f"tiers, and asleep: {_model_names(case.sleepers)}", severity)
    return None


def cold_standby(case: WorkloadOnVariant) -> str | None:
    """A standby does not fit next to its model, so that it has to start when it is needed."""
    return "; ".join(map(describe_standby_start, case.starting_anew)) or None


def describe_standby_start(model: Model) -> str:
    """Describe how long a model takes that is its own standby."""
    if not (model.image and model.level == 1):
        return f"{model.name} cold, {START_SECONDS[0]:.0f} to {START_SECONDS[1]:g} s"
    first, last = IMAGE_START_SECONDS
    return f"{model.name} from its image, {first:g} to {last:g} s with {IMAGE_WEIGHTS_GIB} GiB of weights"


def lmcache_with_sleep(case: WorkloadOnVariant) -> str | None:
    if case.sleepers and len(case.workload.models) > 1:
        others = [model for model in case.workload.models if not model.sleeps]
        beside = f", beside {_model_names(others)}" if others else ""
        return f"asleep: {_model_names(case.sleepers)}{beside}"
    return None


def packed_without_gain(case: WorkloadOnVariant) -> str | None:
    stuck = [each for each in case.packed if each.quantization or each.dtype is DType.FLOAT32]
    return ", ".join(f"{each.name} in {each.quantization or each.dtype}" for each in stuck) or None


def too_few_gpus_for_pods(case: WorkloadOnVariant) -> str | None:
    if case.budget is None:
        return None
    asked = sum(model.gpus for model in case.workload.models) + (case.workload.video is not None)
    there = sum(memory.gpu is not None for memory in case.budget.memories)
    if asked > there:
        return f"pods ask for {asked} GPU(s), and there are {there}"
    return None


# --- Swap time -----------------------------------------------------------------------------------------------------


def swap_too_slow(case: WorkloadOnVariant) -> Finding | None:
    """At the fastest rates measured, the copies alone take longer than allowed; WSL was not measured."""
    late = [swap for swap in case.swaps if swap.best > case.within]
    if late:
        severity = Severity.UNVERIFIED if path_of(case.variant) in SHARED_GPU_PATHS else Severity.UNSUPPORTED
        slowest = max(late, key=lambda swap: swap.best)
        return finding("sleep-l1.swap-too-slow", f"{slowest}, requested within {case.within:.0f} s", severity)
    return None


def unmeasured_swap(case: WorkloadOnVariant) -> str | None:
    """The swap is in time at the fastest rates measured, but not at the slowest reported."""
    doubtful = [swap for swap in case.swaps if swap.best <= case.within < swap.worst]
    if doubtful:
        slowest = max(doubtful, key=lambda swap: swap.worst)
        return f"{slowest}, requested within {case.within:.0f} s"
    return None
