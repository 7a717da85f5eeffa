"""Evaluate the conditions of rows and causes: versions, the model, the GPUs. Unstated values stay unknown."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from packaging.version import Version

from winhost.compat.capabilities.nccl import PEERS, SHM, measured_transport, transport
from winhost.compat.target import Target, is_in_guest
from winhost.compat.workload_rules import RELOADING_FORMATS
from winhost.core.answers import NOT_READ, MissingFact
from winhost.core.dataclass import dataclass
from winhost.findings import condition
from winhost.findings.condition import ConditionResult, R, format_condition
from winhost.hardware.host_gpus import catalogue_entry, gpu_name
from winhost.model.reason import Finding, Severity
from winhost.model.workload import LoadFormat, Mirror, Model, Workload
from winhost.serving.profile import Cause, ProfileRow, profile
from winhost.sizing.budget import Budget
from winhost.sizing.memories import RAM, MemoryUse

Value = Version | int | bool


@dataclass(frozen=True)
class Case:
    """A model of a workload on a target. budget: of all models of the workload; vram: bytes of each GPU; wsl_ram: bytes
    of memory that WSL gets as it is configured now, on another target all of its memory.
    """

    target: Target
    workload: Workload
    model: Model
    budget: Budget
    vram: tuple[int, ...]
    wsl_ram: int

    @property
    def ram(self) -> MemoryUse:
        """The use of the machine's memory."""
        use = self.budget.use_of(RAM)
        assert use is not None
        return use


def _has_blackwell(case: Case) -> bool:
    gpus = [(gpu, catalogue_entry(gpu)) for gpu in case.target.gpus]
    if any(model and model.architecture == "Blackwell" for _, model in gpus):
        return True
    for gpu, model in gpus:
        if model is None or model.architecture is None:
            raise MissingFact(f"the architecture of {gpu_name(gpu)}", NOT_READ)
    return False


def _can_use_peers(case: Case) -> bool:
    """Tell whether the GPUs of an engine may copy to each other; in a guest only once a measurement has shown it."""
    if case.target.path in ("dda", "linux") and is_in_guest(case.target):
        return measured_transport(case.target) == PEERS
    found = transport(case.target)
    return found is None or found.name != SHM


def _is_mirrored(case: Case, through: Mirror) -> bool:
    return case.workload.kv_mirror is not None and case.workload.kv_mirror.through is through


def _backups_fit(case: Case) -> bool:
    """Tell whether the backups of all models that sleep fit next to everything else in memory."""
    ram = case.ram
    if ram.fits is None:
        raise MissingFact("the memory of all sleeping models", NOT_READ)
    return ram.fits


def _residues_fit(case: Case) -> bool:
    """Tell whether what sleeping models leave on the model's GPUs fits next to the model whose turn it is. Unknown
    sizes count as fitting.
    """
    gpus = case.budget.placement.gpus.get(case.model.name, ())
    return all(memory.fits is not False for memory in case.budget.memories if memory.gpu in gpus)


VALUES: Mapping[str, Callable[[Case], Value]] = {
    "vllm": lambda case: case.target.vllm,
    "cuda": lambda case: case.target.cuda,
    "wsl": lambda case: case.target.wsl,
    "kernel": lambda case: case.target.kernel,
    "driver": lambda case: case.target.driver,
    "gpus": lambda case: len(case.target.gpus),
    "blackwell": _has_blackwell,
    "peers": _can_use_peers,
    "models": lambda case: len(case.workload.models),
    "model_gpus": lambda case: case.model.gpus,
    "tensor": lambda case: case.model.parallel.tensor,
    "pipeline": lambda case: case.model.parallel.pipeline,
    "data": lambda case: case.model.parallel.data,
    "lora": lambda case: case.model.lora is not None,
    "remote_code": lambda case: case.model.trust_remote_code,
    "quantized": lambda case: case.model.quantization is not None,
    "context": lambda case: case.model.context is not None,
    "kv_fp8": lambda case: case.model.kv_bytes == 1,
    "sleeps": lambda case: case.model.sleeps,
    "level": lambda case: case.model.level,
    "backs_up": lambda case: case.model.sleeps and case.model.level == 1,
    "loader": lambda case: case.model.load_format is not LoadFormat.AUTO,
    "weight_cache": lambda case: case.model.load_format is LoadFormat.IPC_CACHE,
    "reloads": lambda case: case.model.load_format in RELOADING_FORMATS,
    "backups_fit": _backups_fit,
    "residues_fit": _residues_fit,
    "kv_tiers": lambda case: _is_mirrored(case, Mirror.TIERS),
    "lmcache": lambda case: _is_mirrored(case, Mirror.LMCACHE),
    "pinned": lambda case: "pinned-memory" in case.workload.needs.must,
    "above_wsl_ram": lambda case: case.ram.used > case.wsl_ram,
}


def holding(rows: Iterable[R], case: Case) -> Iterator[tuple[R, ConditionResult]]:
    """Yield the rows of a profile that hold for a model on a target, or may hold."""
    return condition.matching_rows(rows, lambda name: (VALUES[name](case),), "blocks")


def reason(
    row: ProfileRow | Cause, case: Case, severity: Severity, *, observed: str, lacks: str | None = None
) -> Finding:
    """Make the reason for a line of a profile, or for the choice of a profile. It is unverified where `lacks` says what
    is not known.
    """
    return Finding(
        code=row.code,
        severity=Severity.UNVERIFIED if lacks and severity is Severity.NOTE else severity,
        observed=observed,
        subject=case.model.name,
        remedy=None,
        evidence=row.evidence,
        sentence=row.why,
        lacks=lacks,
    )


def causes_of(case: Case, fallback: str) -> Iterator[Finding]:
    """Yield the reasons for the profile without sleep: those that hold, and unverified ones that may hold."""
    for cause, result in holding(profile(fallback).chosen, case):
        severity = Severity.UNVERIFIED if result.doubt else Severity.DEGRADED
        yield reason(cause, case, severity, observed=format_condition(cause.when, result), lacks=result.doubt)
