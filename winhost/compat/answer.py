"""What `assess` and `diff` answer to programs: documents of a published shape (`winhost schema`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, TypeVar

from packaging.version import Version

from winhost.compat.compare import Comparison, Difference, VerdictChange, compare
from winhost.compat.marked import marked
from winhost.compat.needs import Fit, Nearest, Needs, fit_of, fits, nearest
from winhost.compat.remedy import Mended, assess_as_if, cheapest
from winhost.compat.settle import Settling, shopping_list
from winhost.model.facts import Facts
from winhost.model.path import is_meant, path_of, variant_name
from winhost.model.reason import (
    PLAN,
    Assessment,
    CapabilityVerdict,
    PathVerdict,
    Reason,
    Remedy,
    Severity,
    SubjectVerdict,
    Verdict,
)
from winhost.model.units import Bytes
from winhost.model.workload import Workload
from winhost.resources.stated import Statement, stated
from winhost.sizing.engines import Missing
from winhost.sizing.fit import WhatWouldFit
from winhost.sizing.fit_fixes import Fix
from winhost.sizing.memory_places import BudgetLine, MemoryPlace
from winhost.sizing.placement import Placement

T = TypeVar("T")


@dataclass(frozen=True)
class Requirements:
    """What a host is held against. path: the only one that will do, or a variant of it; remedies: judged as if they
    were done; assumed: facts that are stated where nothing was read; asked: the capabilities that were named for this
    look alone, beside those that a workload needs.
    """

    needs: Needs = field(default_factory=Needs)
    path: str | None = None
    workload: Workload | None = None
    remedies: Sequence[Remedy] = ()
    assumed: Sequence[Statement] = ()
    asked: tuple[str, ...] = ()

    @property
    def supposed(self) -> "Supposed | None":
        """What of it is no fact and no workload; None where nothing is."""
        what_if = tuple(remedy.id for remedy in self.remedies)
        words = tuple(each.word for each in self.assumed)
        return Supposed(what_if, self.asked, words) if what_if or self.asked or words else None

    @property
    def stated(self) -> Mapping[str, Version]:
        return self.workload.versions if self.workload else {}


@dataclass(frozen=True)
class Judged:
    """A host. fits: each path by the best of its ways, the best first; changes: the cheapest that make the request
    work, none where there is nothing to change; null where winhost knows of none; nearest: the smallest change of the
    workload that a way would carry, null where it is carried as it is, or winhost knows of none; settle: what to run
    there to settle what verdicts wait for.
    """

    host: str
    assessment: Assessment
    fits: tuple[Fit, ...]
    changes: Mended | None
    nearest: Nearest | None = None
    settle: tuple[Settling, ...] = ()


@dataclass(frozen=True)
class Supposed:
    """That an answer is hypothetical. what_if: remedies, judged as if they were done; needs: what has to be offered;
    assumed: facts that are stated.
    """

    what_if: tuple[str, ...]
    needs: tuple[str, ...]
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recommended:
    """The option that is recommended."""

    path: str
    variant: str | None
    verdict: Verdict


@dataclass(frozen=True)
class NearestVariant:
    """The smallest change of a workload by which an option would carry it: see Nearest."""

    path: str
    variant: str | None
    verdict: Verdict
    fix: Fix


@dataclass(frozen=True)
class BriefReason:
    """A reason without its sentence, which `winhost explain CODE` has."""

    code: str
    severity: Severity
    subject: str
    observed: str
    remedy: str | None


@dataclass(frozen=True)
class BriefSubject:
    """A card or VM. key: its location path or GUID; because: the codes that its verdict rests on."""

    kind: Literal["card", "vm"]
    key: str
    name: str
    verdict: Verdict
    because: tuple[str, ...]


@dataclass(frozen=True)
class BriefVariant:
    """A variant of a path, by itself and without what is asked for."""

    variant: str
    verdict: Verdict


@dataclass(frozen=True)
class BriefOption:
    """A path by the best of its variants. verdict: with what is asked for; reasons: what it rests on, and what a plan
    would be refused for; lacking: capabilities that must be and are not supported; offers: capabilities by verdict;
    memory_fits: of a workload, null where that is not known or there is none.
    """

    path: str
    variant: str | None
    verdict: Verdict
    reasons: tuple[BriefReason, ...]
    variants: tuple[BriefVariant, ...]
    subjects: tuple[BriefSubject, ...]
    lacking: tuple[str, ...]
    offers: Mapping[str, tuple[str, ...]]
    memory_fits: bool | None
    stated: tuple[str, ...]


@dataclass(frozen=True)
class Brief:
    """The answer to `assess --json`. options: the best first; changes: ids of the cheapest remedies that make the
    request
    work, none where there is nothing to change, null where winhost knows of none; supposed: null where nothing is;
    settle: what to run to know more.
    """

    host: str
    origin: str
    supposed: Supposed | None
    recommended: Recommended | None
    options: tuple[BriefOption, ...]
    changes: tuple[str, ...] | None
    nearest: NearestVariant | None
    settle: tuple[Settling, ...]


@dataclass(frozen=True)
class FullMemory:
    """The memory that an option gives: see Room."""

    cards: tuple[Bytes, ...]
    ram: Bytes
    host_ram: Bytes
    shm: Bytes | None
    pinned: Bytes | None


@dataclass(frozen=True)
class FullBudget:
    """The memory that a workload takes by an option: see Budget."""

    lines: tuple[BudgetLine, ...]
    places: tuple[MemoryPlace, ...]
    placement: Placement
    missing: tuple[Missing, ...]
    fits: bool | None


@dataclass(frozen=True)
class FullOption:
    """A path, or each of its variants, with all that is said of it: see PathVerdict and Fit. verdict: its own; meets:
    with what is asked for.
    """

    path: str
    variant: str | None
    verdict: Verdict
    meets: Verdict
    because: tuple[str, ...]
    reasons: tuple[Reason, ...]
    cards: tuple[SubjectVerdict, ...]
    vms: tuple[SubjectVerdict, ...]
    grounds: tuple[str, ...]
    capabilities: Sequence[CapabilityVerdict]
    lacking: tuple[CapabilityVerdict, ...]
    missed: tuple[CapabilityVerdict, ...]
    denied: tuple[Reason, ...]
    room: FullMemory | None
    budget: FullBudget | None
    short: WhatWouldFit | None
    stated: tuple[str, ...]


@dataclass(frozen=True)
class FullChanges:
    """What makes an option work: remedies in the order in which they were needed, and what it is worth then."""

    remedies: tuple[Remedy, ...]
    path: str
    variant: str | None
    verdict: Verdict


@dataclass(frozen=True)
class Full:
    """The answer to `assess --full --json`: as the brief one, with every reason, note, capability and number."""

    host: str
    origin: str
    supposed: Supposed | None
    recommended: Recommended | None
    options: tuple[FullOption, ...]
    changes: FullChanges | None
    nearest: NearestVariant | None
    settle: tuple[Settling, ...]


@dataclass(frozen=True)
class Reading:
    """Where facts come from: see Facts."""

    host: str
    origin: str
    read_at: str
    winhost: str


@dataclass(frozen=True)
class Diff:
    """The answer to `diff --json`; recommended: before and after; two_machines: the readings are not of one."""

    before: Reading
    after: Reading
    differences: tuple[Difference, ...]
    verdicts: tuple[VerdictChange, ...]
    recommended: tuple[str | None, str | None]
    two_machines: bool


def judge(facts: Facts, asked: Requirements) -> Judged:
    """All that is said of a host. Pure. Raises UsageError: Contradicted, NobodyThere."""
    known, facts = facts, stated(facts, asked.assumed)
    judged = assess_as_if(facts, asked.remedies, asked.stated)
    if asked.assumed:
        judged = marked(judged, {each.word: _without(known, each, asked) for each in asked.assumed})
    changes = cheapest(facts, asked.needs, asked.path, asked.workload)
    found = fits(judged, asked.needs, asked.workload, asked.path)
    return Judged(facts.host, judged, found, changes, _nearest(judged, found, asked), shopping_list(judged))


def _without(facts: Facts, left_out: Statement, asked: Requirements) -> Assessment:
    others = [each for each in asked.assumed if each is not left_out]
    return assess_as_if(stated(facts, others), asked.remedies, asked.stated)


def _nearest(judged: Assessment, found: Sequence[Fit], asked: Requirements) -> Nearest | None:
    if asked.workload is None:
        return None
    best = next(fit for fit in found if is_meant(asked.path, fit.variant))
    variants = [variant for variant in judged.every_variant if is_meant(asked.path, variant.path)]
    return nearest(variants, asked.needs, asked.workload, best)


def brief(found: Judged, asked: Requirements) -> Brief:
    """What decides, without evidence and sentences."""
    paths = {variant.path: (path, variant) for path in found.assessment.paths for variant in path.every_variant}
    options = tuple(_brief_option(fit, *paths[fit.variant]) for fit in found.fits if is_meant(asked.path, fit.variant))
    changes = tuple(remedy.id for remedy in found.changes.remedies) if found.changes else None
    recommended, near = _recommended(found, asked), _nearest_variant(found.nearest)
    origin = found.assessment.origin
    return Brief(found.host, origin, asked.supposed, recommended, options, changes, near, found.settle)


def _recommended(found: Judged, asked: Requirements) -> Recommended | None:
    """None where nothing works, or it is not known which Windows it is."""
    best = next(fit for fit in found.fits if is_meant(asked.path, fit.variant))
    if found.assessment.recommended is None or best.verdict is Verdict.UNSUPPORTED:
        return None
    return Recommended(path_of(best.variant), variant_name(best.variant), best.verdict)


def _nearest_variant(found: Nearest | None) -> NearestVariant | None:
    return (
        NearestVariant(path_of(found.variant), variant_name(found.variant), found.verdict, found.fix) if found else None
    )


def _brief_option(fit: Fit, path: PathVerdict, variant: PathVerdict) -> BriefOption:
    lacking = [reason for offered in fit.lacking for reason in offered.reasons]
    heavy = [each for each in (*variant.reasons, *lacking, *fit.denied) if each.severity is not Severity.NOTE]
    told = dict.fromkeys((*heavy, *(reason for reason in variant.reasons if reason.subject == PLAN)))
    offers: dict[Verdict, list[str]] = {}
    for offered in variant.capabilities:
        offers.setdefault(offered.verdict, []).append(offered.capability)
    return BriefOption(
        path.path,
        variant_name(fit.variant),
        fit.verdict,
        tuple(BriefReason(each.code, each.severity, each.subject, each.observed, each.remedy) for each in told),
        tuple(BriefVariant(variant_name(each.path) or "", each.verdict) for each in path.variants),
        tuple(map(_brief_subject, (*variant.cards, *variant.vms))),
        tuple(offered.capability for offered in fit.lacking),
        {str(verdict): tuple(names) for verdict, names in offers.items()},
        fit.budget.fits if fit.budget else None,
        variant.stated,
    )


def _brief_subject(subject: SubjectVerdict) -> BriefSubject:
    heavy = (reason.code for reason in subject.reasons if reason.severity.rank == subject.verdict.rank > 0)
    because = tuple(dict.fromkeys(heavy))
    return BriefSubject(subject.kind, subject.key, subject.name, subject.verdict, because)


def full(found: Judged, asked: Requirements) -> Full:
    """Everything, of each variant by itself."""
    variants = [variant for variant in found.assessment.every_variant if is_meant(asked.path, variant.path)]
    options = tuple(_full_option(variant, fit_of(variant, asked.needs, asked.workload)) for variant in variants)
    options = tuple(sorted(options, key=lambda option: option.meets.rank))
    return Full(
        found.host,
        found.assessment.origin,
        asked.supposed,
        _recommended(found, asked),
        options,
        _full_changes(found.changes),
        _nearest_variant(found.nearest),
        found.settle,
    )


def _full_option(variant: PathVerdict, fit: Fit) -> FullOption:
    return FullOption(
        path_of(variant.path),
        variant_name(variant.path),
        variant.verdict,
        fit.verdict,
        variant.because,
        variant.reasons,
        variant.cards,
        variant.vms,
        variant.grounds,
        variant.capabilities,
        fit.lacking,
        fit.missed,
        fit.denied,
        _as(FullMemory, variant.available_memory),
        _as(FullBudget, fit.budget),
        fit.short,
        variant.stated,
    )


def _full_changes(changes: Mended | None) -> FullChanges | None:
    if changes is None:
        return None
    variant = changes.fit.variant
    return FullChanges(changes.remedies, path_of(variant), variant_name(variant), changes.fit.verdict)


def _as(kind: type[T], value: object | None) -> T | None:
    """The fields that both have."""
    return None if value is None else kind(**{each.name: getattr(value, each.name) for each in fields(kind)})  # type: ignore[arg-type]


def difference(before: Facts, after: Facts) -> tuple[Comparison, Diff]:
    """What changed, to look at and to print. Raises WrongState."""
    found = compare(before, after)
    readings = _reading(before), _reading(after)
    document = Diff(*readings, found.differences, found.verdicts, found.recommended, found.two_machines)
    return found, document


def _reading(facts: Facts) -> Reading:
    return Reading(facts.host, facts.origin, facts.read_at, facts.winhost)
