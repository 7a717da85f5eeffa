"""The answers of `assess --json`, brief and full; `winhost schema` publishes their shape."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Literal, TypeVar

from winhost.compat.evaluation import Evaluation, Requirements, Settling, Supposed
from winhost.compat.needs import Fit, NearestFit, fit_of
from winhost.compat.remedy import Repair
from winhost.core.dataclass import dataclass
from winhost.model.path import is_requested, path_of, variant_name
from winhost.model.reason import (
    PLAN,
    CapabilityVerdict,
    Finding,
    PathVerdict,
    Remedy,
    Severity,
    SubjectVerdict,
    Verdict,
)
from winhost.model.units import Bytes
from winhost.sizing.engines import Missing
from winhost.sizing.fit import FitAdvice
from winhost.sizing.fit_changes import Fix
from winhost.sizing.memories import BudgetLine, MemoryUse
from winhost.sizing.placement import Placement

T = TypeVar("T")


@dataclass(frozen=True)
class Recommended:
    """The recommended option."""

    path: str
    variant: str | None
    verdict: Verdict


@dataclass(frozen=True)
class NearestOption:
    """The smallest change of a workload with which an option fits it: see Nearest."""

    path: str
    variant: str | None
    verdict: Verdict
    fix: Fix


@dataclass(frozen=True)
class BriefSubject:
    """A GPU or VM. key: its location path or GUID; because: the codes that decide its verdict."""

    kind: Literal["gpu", "vm"]
    key: str
    name: str
    verdict: Verdict
    because: tuple[str, ...]


@dataclass(frozen=True)
class BriefVariant:
    """A variant of a path, evaluated without the requirements."""

    variant: str
    verdict: Verdict


@dataclass(frozen=True)
class BriefOption:
    """A path, represented by its best variant. verdict: with the requirements; reasons: those that decide the verdict,
    and why a plan would be refused; lacking: required capabilities that are not supported; offers: capabilities by
    verdict; memory_fits: whether the workload's memory fits, null where that is not known or there is no workload.
    """

    path: str
    variant: str | None
    verdict: Verdict
    reasons: tuple[Finding, ...]
    variants: tuple[BriefVariant, ...]
    subjects: tuple[BriefSubject, ...]
    lacking: tuple[str, ...]
    offers: Mapping[str, tuple[str, ...]]
    memory_fits: bool | None
    stated: tuple[str, ...]


@dataclass(frozen=True)
class Brief:
    """The answer to `assess --json`. options: best first; changes: ids of the cheapest remedies after which it works,
    empty where nothing has to change, null where none are known; supposed: null where nothing is hypothetical; settle:
    commands that provide missing facts.
    """

    host: str
    origin: str
    supposed: Supposed | None
    recommended: Recommended | None
    options: tuple[BriefOption, ...]
    changes: tuple[str, ...] | None
    nearest: NearestOption | None
    settle: tuple[Settling, ...]


@dataclass(frozen=True)
class FullMemory:
    """The memory that an option provides: see AvailableMemory."""

    gpus: tuple[Bytes, ...]
    ram: Bytes
    host_ram: Bytes
    shm: Bytes | None
    pinned: Bytes | None


@dataclass(frozen=True)
class FullBudget:
    """The memory that a workload needs with an option: see Budget."""

    lines: tuple[BudgetLine, ...]
    memories: tuple[MemoryUse, ...]
    placement: Placement
    missing: tuple[Missing, ...]
    fits: bool | None
    may_fit: bool | None


@dataclass(frozen=True)
class FullOption:
    """A path, or each of its variants, with everything that is known of it: see PathVerdict and Fit. verdict: its own;
    meets: with the requirements.
    """

    path: str
    variant: str | None
    verdict: Verdict
    meets: Verdict
    because: tuple[str, ...]
    reasons: tuple[Finding, ...]
    gpus: tuple[SubjectVerdict, ...]
    vms: tuple[SubjectVerdict, ...]
    grounds: tuple[str, ...]
    capabilities: Sequence[CapabilityVerdict]
    lacking: tuple[CapabilityVerdict, ...]
    missed: tuple[CapabilityVerdict, ...]
    denied: tuple[Finding, ...]
    room: FullMemory | None
    budget: FullBudget | None
    short: FitAdvice | None
    stated: tuple[str, ...]


@dataclass(frozen=True)
class FullChanges:
    """The changes that make an option work: remedies in the order in which they are needed, and the verdict
    after them.
    """

    remedies: tuple[Remedy, ...]
    path: str
    variant: str | None
    verdict: Verdict


@dataclass(frozen=True)
class Full:
    """The answer to `assess --full --json`: like the brief one, with every reason, note, capability and number."""

    host: str
    origin: str
    supposed: Supposed | None
    recommended: Recommended | None
    options: tuple[FullOption, ...]
    changes: FullChanges | None
    nearest: NearestOption | None
    settle: tuple[Settling, ...]


def brief(evaluation: Evaluation, requirements: Requirements) -> Brief:
    """Reduce an evaluation to what decides."""
    paths = {variant.path: (path, variant) for path in evaluation.assessment.paths for variant in path.every_variant}
    options = tuple(
        _brief_option(fit, *paths[fit.variant])
        for fit in evaluation.fits
        if is_requested(requirements.path, fit.variant)
    )
    changes = tuple(remedy.id for remedy in evaluation.changes.remedies) if evaluation.changes else None
    recommended, nearest = _recommended(evaluation, requirements), _nearest_option(evaluation.nearest)
    origin = evaluation.assessment.origin
    return Brief(
        evaluation.host, origin, requirements.supposed, recommended, options, changes, nearest, evaluation.settle
    )


def _recommended(evaluation: Evaluation, requirements: Requirements) -> Recommended | None:
    """Return the recommended option; None where nothing works or the Windows version is not known."""
    best = next(fit for fit in evaluation.fits if is_requested(requirements.path, fit.variant))
    if evaluation.assessment.recommended is None or best.verdict is Verdict.UNSUPPORTED:
        return None
    return Recommended(path_of(best.variant), variant_name(best.variant), best.verdict)


def _nearest_option(nearest: NearestFit | None) -> NearestOption | None:
    return (
        NearestOption(path_of(nearest.variant), variant_name(nearest.variant), nearest.verdict, nearest.fix)
        if nearest
        else None
    )


def _brief_option(fit: Fit, path: PathVerdict, variant: PathVerdict) -> BriefOption:
    lacking = [reason for offered in fit.lacking for reason in offered.reasons]
    decisive = [each for each in (*variant.reasons, *lacking, *fit.denied) if each.severity is not Severity.NOTE]
    reasons = dict.fromkeys((*decisive, *(reason for reason in variant.reasons if reason.subject == PLAN)))
    offers: dict[Verdict, list[str]] = {}
    for offered in variant.capabilities:
        offers.setdefault(offered.verdict, []).append(offered.capability)
    return BriefOption(
        path.path,
        variant_name(fit.variant),
        fit.verdict,
        tuple(reasons),
        tuple(BriefVariant(variant_name(each.path) or "", each.verdict) for each in path.variants),
        tuple(map(_brief_subject, (*variant.gpus, *variant.vms))),
        tuple(offered.capability for offered in fit.lacking),
        {str(verdict): tuple(names) for verdict, names in offers.items()},
        fit.budget.fits if fit.budget else None,
        variant.stated,
    )


def _brief_subject(subject: SubjectVerdict) -> BriefSubject:
    because = subject.verdict.because(subject.reasons)
    return BriefSubject(subject.kind, subject.key, subject.name, subject.verdict, because)


def full(evaluation: Evaluation, requirements: Requirements) -> Full:
    """Return the whole evaluation of each variant."""
    variants = [
        variant for variant in evaluation.assessment.every_variant if is_requested(requirements.path, variant.path)
    ]
    options = tuple(
        _full_option(variant, fit_of(variant, requirements.needs, requirements.workload)) for variant in variants
    )
    options = tuple(sorted(options, key=lambda option: option.meets.rank))
    return Full(
        evaluation.host,
        evaluation.assessment.origin,
        requirements.supposed,
        _recommended(evaluation, requirements),
        options,
        _full_changes(evaluation.changes),
        _nearest_option(evaluation.nearest),
        evaluation.settle,
    )


def _full_option(variant: PathVerdict, fit: Fit) -> FullOption:
    return FullOption(
        path_of(variant.path),
        variant_name(variant.path),
        variant.verdict,
        fit.verdict,
        variant.because,
        variant.reasons,
        variant.gpus,
        variant.vms,
        variant.grounds,
        variant.capabilities,
        fit.lacking,
        fit.missed,
        fit.denied,
        _copy_fields(FullMemory, variant.available_memory),
        _copy_fields(FullBudget, fit.budget),
        fit.short,
        variant.stated,
    )


def _full_changes(changes: Repair | None) -> FullChanges | None:
    if changes is None:
        return None
    variant = changes.fit.variant
    remedies = (Remedy(each.id, each.do, each.who, each.unverified) for each in changes.remedies)
    return FullChanges(tuple(remedies), path_of(variant), variant_name(variant), changes.fit.verdict)


def _copy_fields(kind: type[T], value: object | None) -> T | None:
    """Make a document of this class from the value's fields with the same names."""
    return None if value is None else kind(**{each.name: getattr(value, each.name) for each in fields(kind)})  # type: ignore[arg-type]
