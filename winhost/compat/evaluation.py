"""Evaluates a host against requirements, and marks what depends on facts that the user stated."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Any

from packaging.version import Version

from winhost.compat.needs import Fit, NearestFit, Needs, find_nearest, fit_paths
from winhost.compat.remedy import Repair, assess_as_if, find_cheapest_repair
from winhost.compat.stated import Statement, apply_statements
from winhost.core.dataclass import dataclass
from winhost.model.catalogue_file import load_catalogue
from winhost.model.errors import visible
from winhost.model.facts import Facts
from winhost.model.lazy import LazySequence
from winhost.model.once import once
from winhost.model.path import PATHS_OF_LINUX, is_requested
from winhost.model.reason import (
    Assessment,
    CapabilityVerdict,
    Finding,
    KnownRemedy,
    PathVerdict,
    Severity,
    SubjectVerdict,
)
from winhost.model.workload import Workload
from winhost.resources.host import HostFacts, other_system_error
from winhost.resources.registry import is_linux

# --- What depends on stated facts: everything that would be different without them ---------------------------------


@dataclass(frozen=True)
class _WithoutStatement:
    """The verdict of one variant without one statement."""

    statement: str
    variant: PathVerdict

    @property
    def reported(self) -> set[tuple[str, str, str]]:
        return {(r.code, r.subject, r.observed) for r in self.variant.every_reason}


def mark_stated(assessment: Assessment, without: Mapping[str, Assessment]) -> Assessment:
    """Mark everything in an assessment that depends on a statement. without: the assessments without each statement, by
    its text.
    """
    paths = tuple(
        _mark_path(path, {statement: other.path(path.path) for statement, other in without.items()})
        for path in assessment.paths
    )
    return replace(assessment, paths=paths, stated=tuple(without))


def _mark_path(path: PathVerdict, without: Mapping[str, PathVerdict]) -> PathVerdict:
    others = {
        statement: {variant.path: variant for variant in other.every_variant} for statement, other in without.items()
    }
    variants = tuple(
        _mark_variant(
            variant, [_WithoutStatement(statement, found[variant.path]) for statement, found in others.items()]
        )
        for variant in path.variants
    )
    return replace(
        _mark_variant(path, [_WithoutStatement(statement, other) for statement, other in without.items()]),
        variants=variants,
    )


def _mark_variant(variant: PathVerdict, others: Sequence[_WithoutStatement]) -> PathVerdict:
    return replace(
        variant,
        stated=tuple(other.statement for other in others if other.variant.verdict is not variant.verdict),
        reasons=_mark_reasons(variant.reasons, others),
        gpus=_mark_subjects(variant.gpus, others),
        vms=_mark_subjects(variant.vms, others),
        capabilities=LazySequence(lambda: [_mark_capability(offered, others) for offered in variant.capabilities]),
    )


def _mark_subjects(
    subjects: Iterable[SubjectVerdict], others: Sequence[_WithoutStatement]
) -> tuple[SubjectVerdict, ...]:
    return tuple(replace(subject, reasons=_mark_reasons(subject.reasons, others)) for subject in subjects)


def _mark_reasons(reasons: Iterable[Finding], others: Sequence[_WithoutStatement]) -> tuple[Finding, ...]:
    reported = {other.statement: other.reported for other in others}
    return tuple(_mark_reason(reason, reported) for reason in reasons)


def _mark_reason(reason: Finding, without: Mapping[str, set[tuple[str, str, str]]]) -> Finding:
    """Mark a reason that does not exist without a statement. The mark is part of the observation, so that it is shown
    wherever the reason is.
    """
    identity = (reason.code, reason.subject, reason.observed)
    statements = tuple(
        statement for statement, reported in without.items() if identity not in reported and reason.lacks is None
    )
    return (
        replace(reason, stated=statements, observed=f"{reason.observed} {format_stated(statements)}")
        if statements
        else reason
    )


def format_stated(statements: Iterable[str]) -> str:
    """Format the mark of a reason that depends on statements."""
    return f"(stated: {', '.join(statements)})"


def _mark_capability(offered: CapabilityVerdict, others: Sequence[_WithoutStatement]) -> CapabilityVerdict:
    found = {other.statement: other.variant.offers(offered.capability) for other in others}
    reported = {
        statement: {(r.code, r.subject, r.observed) for r in other.reasons} for statement, other in found.items()
    }
    reasons = tuple(_mark_reason(reason, reported) for reason in offered.reasons)
    statements = tuple(statement for statement, other in found.items() if other.verdict is not offered.verdict)
    return replace(offered, reasons=reasons, stated=statements)


# --- Commands that provide missing facts: as few as possible for as many reasons as possible -------------------------

MAX_COMMANDS = 3
GAP_SUFFIX = ".unknown"


@dataclass(frozen=True)
class SettlingCommand:
    """A row of settle.yaml. run: the command for the host; then: what to do with its output, with {host} and {file};
    provides: the facts that it prints, `*` for all of a resource.
    """

    run: str
    then: str
    provides: tuple[str, ...]


@dataclass(frozen=True)
class Settling:
    """A command to run. settles: the missing facts that it provides; reasons: how many reasons wait for them."""

    run: str
    then: str
    settles: tuple[str, ...]
    reasons: int


@once
def settling_commands() -> tuple[SettlingCommand, ...]:
    """Return the commands of settle.yaml, the preferred ones first. The last one provides everything."""
    rows: list[dict[str, Any]] = load_catalogue(files(__package__).joinpath("settle.yaml"))
    return tuple(SettlingCommand(row["run"], row["then"], tuple(row["provides"])) for row in rows)


def choose_commands(assessment: Assessment, file: str | None = None) -> tuple[Settling, ...]:
    """Choose at most MAX_COMMANDS commands, each time the one for which most reasons wait. If the last one would leave
    facts missing, the command that provides everything replaces it. There are only commands for Windows.

    file: the facts file as the user named it.
    """
    # An import can only add to imported facts, not to facts that were read from the host.
    names = {
        "host": visible(shlex.quote(assessment.host)),
        "file": file if file and assessment.origin == "imported" else "facts.json",
    }
    open_ = Counter(
        _awaited_facts(variant for variant in assessment.every_variant if variant.path not in PATHS_OF_LINUX)
    )
    *single, everything = settling_commands()
    chosen: list[Settling] = []
    while open_ and len(chosen) < MAX_COMMANDS:
        best = max(single, key=lambda command: _count_waiting(command, open_))
        remaining = {fact for fact in open_ if not _provides(best, fact)}
        if not _count_waiting(best, open_) or (len(chosen) == MAX_COMMANDS - 1 and remaining):
            best, remaining = everything, set()
        provided = tuple(sorted(open_.keys() - remaining))
        chosen.append(Settling(best.run, best.then.format_map(names), provided, sum(open_[fact] for fact in provided)))
        open_ = Counter({fact: open_[fact] for fact in remaining})
    return tuple(chosen)


def _awaited_facts(variants: Iterable[PathVerdict]) -> Iterable[str]:
    """Yield the missing fact of each reason that is unverified for lack of it."""
    every = (reason for variant in variants for reason in dict.fromkeys(variant.every_reason))
    waiting = (each for each in every if each.severity is Severity.UNVERIFIED and each.code.endswith(GAP_SUFFIX))
    return (reason.lacks for reason in waiting if reason.lacks)


def _count_waiting(command: SettlingCommand, open_: Counter[str]) -> int:
    return sum(count for fact, count in open_.items() if _provides(command, fact))


def _provides(command: SettlingCommand, fact: str) -> bool:
    return any(fnmatchcase(fact, pattern) for pattern in command.provides)


# --- The evaluation ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Supposed:
    """The hypothetical part of an answer. what_if: remedies that are evaluated as if they were applied; needs:
    capabilities that a target must offer; assumed: facts that were stated, not read.
    """

    what_if: tuple[str, ...]
    needs: tuple[str, ...]
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Requirements:
    """The requirements that a host is evaluated against. path: the only path or variant that counts; remedies:
    evaluated as if they were applied; assumed: facts stated by the user where none were read; named_needs: the
    capabilities on the command line, which `needs` contains together with those of the workload.
    """

    needs: Needs = field(default_factory=Needs)
    path: str | None = None
    workload: Workload | None = None
    remedies: Sequence[KnownRemedy] = ()
    assumed: Sequence[Statement] = ()
    named_needs: tuple[str, ...] = ()

    @property
    def supposed(self) -> Supposed | None:
        """The hypothetical part: remedies, named capabilities and stated facts; None where there is none."""
        what_if = tuple(remedy.id for remedy in self.remedies)
        assumed = tuple(each.text for each in self.assumed)
        return Supposed(what_if, self.named_needs, assumed) if what_if or self.named_needs or assumed else None

    @property
    def stated(self) -> Mapping[str, Version]:
        return self.workload.versions if self.workload else {}


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of a host. fits: each path by its best variant, best first; changes: the cheapest remedies after
    which it works, empty where nothing has to change, None where none are known; nearest: the smallest change of the
    workload that makes it fit, None where it fits as it is or no change is known; settle: commands that provide missing
    facts.
    """

    host: str
    assessment: Assessment
    fits: tuple[Fit, ...]
    changes: Repair | None
    nearest: NearestFit | None = None
    settle: tuple[Settling, ...] = ()


def evaluate(facts: Facts, requirements: Requirements, file: str | None = None) -> Evaluation:
    """Evaluate a host. Pure. file: the facts file as the user named it.

    Raises UsageError: Contradicted, NobodyThere, OtherSystem.
    """
    if is_linux(facts) != (requirements.path in PATHS_OF_LINUX) and requirements.path:
        raise other_system_error(HostFacts(facts), f"the path {requirements.path}")
    known = HostFacts(apply_statements(facts, requirements.assumed))
    assessment = assess_as_if(known, requirements.remedies, requirements.stated)
    if requirements.assumed:
        assessment = mark_stated(
            assessment, {each.text: _assess_without(facts, each, requirements) for each in requirements.assumed}
        )
    changes = find_cheapest_repair(known, requirements.needs, requirements.path, requirements.workload)
    fits = fit_paths(assessment, requirements.needs, requirements.workload, requirements.path)
    return Evaluation(
        facts.host,
        assessment,
        fits,
        changes,
        _nearest_fit(assessment, fits, requirements),
        choose_commands(assessment, file),
    )


def _assess_without(facts: Facts, omitted: Statement, requirements: Requirements) -> Assessment:
    others = [each for each in requirements.assumed if each is not omitted]
    return assess_as_if(HostFacts(apply_statements(facts, others)), requirements.remedies, requirements.stated)


def _nearest_fit(assessment: Assessment, fits: Sequence[Fit], requirements: Requirements) -> NearestFit | None:
    if requirements.workload is None:
        return None
    best = next(fit for fit in fits if is_requested(requirements.path, fit.variant))
    variants = [variant for variant in assessment.every_variant if is_requested(requirements.path, variant.path)]
    return find_nearest(variants, requirements.needs, requirements.workload, best)
