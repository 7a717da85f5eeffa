"""The evaluation of a host against what is asked of it, marked where it depends on what a user stated."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Any

from packaging.version import Version

from winhost.compat.needs import Fit, Nearest, Needs, fits, nearest
from winhost.compat.remedy import Mended, assess_as_if, cheapest
from winhost.compat.stated import Statement, stated
from winhost.core.dataclass import dataclass
from winhost.model.catalogue_file import load_catalogue
from winhost.model.errors import visible
from winhost.model.facts import Facts
from winhost.model.lazy import LazySequence
from winhost.model.once import once
from winhost.model.path import PATHS_OF_LINUX, is_meant
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

# --- What depends on stated facts: everything that would be different without them --------------------------------


@dataclass(frozen=True)
class _Other:
    """The verdict of one variant without one statement."""

    word: str
    variant: PathVerdict

    @property
    def reported(self) -> set[tuple[str, str, str]]:
        return {(r.code, r.subject, r.observed) for r in self.variant.every_reason}


def marked(judged: Assessment, without: Mapping[str, Assessment]) -> Assessment:
    """without: the assessment without each statement, by the statement's text."""
    paths = tuple(
        _marked_path(path, {word: other.path(path.path) for word, other in without.items()}) for path in judged.paths
    )
    return replace(judged, paths=paths, stated=tuple(without))


def _marked_path(path: PathVerdict, without: Mapping[str, PathVerdict]) -> PathVerdict:
    others = {word: {variant.path: variant for variant in other.every_variant} for word, other in without.items()}
    variants = tuple(
        _marked(variant, [_Other(word, found[variant.path]) for word, found in others.items()])
        for variant in path.variants
    )
    return replace(_marked(path, [_Other(word, other) for word, other in without.items()]), variants=variants)


def _marked(variant: PathVerdict, others: Sequence[_Other]) -> PathVerdict:
    return replace(
        variant,
        stated=tuple(other.word for other in others if other.variant.verdict is not variant.verdict),
        reasons=_reasons(variant.reasons, others),
        gpus=_subjects(variant.gpus, others),
        vms=_subjects(variant.vms, others),
        capabilities=LazySequence(lambda: [_capability(offered, others) for offered in variant.capabilities]),
    )


def _subjects(subjects: Iterable[SubjectVerdict], others: Sequence[_Other]) -> tuple[SubjectVerdict, ...]:
    return tuple(replace(subject, reasons=_reasons(subject.reasons, others)) for subject in subjects)


def _reasons(reasons: Iterable[Finding], others: Sequence[_Other]) -> tuple[Finding, ...]:
    reported = {other.word: other.reported for other in others}
    return tuple(_marked_reason(reason, reported) for reason in reasons)


def _marked_reason(reason: Finding, without: Mapping[str, set[tuple[str, str, str]]]) -> Finding:
    """The mark is part of the observation, so it appears wherever the reason does."""
    identity = (reason.code, reason.subject, reason.observed)
    words = tuple(word for word, reported in without.items() if identity not in reported and reason.lacks is None)
    return replace(reason, stated=words, observed=f"{reason.observed} {mark(words)}") if words else reason


def mark(words: Iterable[str]) -> str:
    """The mark, for people."""
    return f"(stated: {', '.join(words)})"


def _capability(offered: CapabilityVerdict, others: Sequence[_Other]) -> CapabilityVerdict:
    found = {other.word: other.variant.offers(offered.capability) for other in others}
    reported = {word: {(r.code, r.subject, r.observed) for r in other.reasons} for word, other in found.items()}
    reasons = tuple(_marked_reason(reason, reported) for reason in offered.reasons)
    words = tuple(word for word, other in found.items() if other.verdict is not offered.verdict)
    return replace(offered, reasons=reasons, stated=words)


# --- Commands that read missing facts: the fewest that settle most reasons -----------------------------------------

MOST = 3
GAP = ".unknown"


@dataclass(frozen=True)
class SettlingCommand:
    """run: what to type on the host; then: what to do with its output, with {host} and {file}; provides: facts, `*` for
    all of a resource.
    """

    run: str
    then: str
    provides: tuple[str, ...]


@dataclass(frozen=True)
class Settling:
    """A command to run. settles: missing facts that it provides; reasons: how many wait for them."""

    run: str
    then: str
    settles: tuple[str, ...]
    reasons: int


@once
def commands() -> tuple[SettlingCommand, ...]:
    """The commands in the order of preference among equally good ones; the last one provides everything."""
    read: list[dict[str, Any]] = load_catalogue(files(__package__).joinpath("settle.yaml"))
    return tuple(SettlingCommand(row["run"], row["then"], tuple(row["provides"])) for row in read)


def shopping_list(assessment: Assessment, file: str | None = None) -> tuple[Settling, ...]:
    """Choose at most three commands: each time the one for which most reasons wait; if the third would leave facts
    missing, take the command that provides everything instead. All of them are commands of Windows: none for a Linux.
    file: of these facts, as a command names it.
    """
    # An import adds to imported facts, and never to what the host itself answered.
    names = {
        "host": visible(shlex.quote(assessment.host)),
        "file": file if file and assessment.origin == "imported" else "facts.json",
    }
    open_ = Counter(_awaited(variant for variant in assessment.every_variant if variant.path not in PATHS_OF_LINUX))
    *single, everything = commands()
    found: list[Settling] = []
    while open_ and len(found) < MOST:
        best = max(single, key=lambda command: _waiting(command, open_))
        left = {fact for fact in open_ if not _provides(best, fact)}
        if not _waiting(best, open_) or (len(found) == MOST - 1 and left):
            best, left = everything, set()
        settled = tuple(sorted(open_.keys() - left))
        found.append(Settling(best.run, best.then.format_map(names), settled, sum(open_[fact] for fact in settled)))
        open_ = Counter({fact: open_[fact] for fact in left})
    return tuple(found)


def _awaited(variants: Iterable[PathVerdict]) -> Iterable[str]:
    """The missing fact of each reason that waits for one."""
    every = (reason for variant in variants for reason in dict.fromkeys(variant.every_reason))
    waiting = (each for each in every if each.severity is Severity.UNVERIFIED and each.code.endswith(GAP))
    return (reason.lacks for reason in waiting if reason.lacks)


def _waiting(command: SettlingCommand, open_: Counter[str]) -> int:
    return sum(count for fact, count in open_.items() if _provides(command, fact))


def _provides(command: SettlingCommand, fact: str) -> bool:
    return any(fnmatchcase(fact, pattern) for pattern in command.provides)


# --- The evaluation ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Supposed:
    """The hypothetical part of an answer. what_if: remedies evaluated as if they were done; needs: capabilities that a
    target must offer; assumed: facts that were stated, not read.
    """

    what_if: tuple[str, ...]
    needs: tuple[str, ...]
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Requirements:
    """The requirements that a host is evaluated against. path: only this path or variant counts; remedies: evaluated as
    if they were done; assumed: facts stated by the user where none were read; asked: capabilities named on the command
    line, in addition to those that a workload needs.
    """

    needs: Needs = field(default_factory=Needs)
    path: str | None = None
    workload: Workload | None = None
    remedies: Sequence[KnownRemedy] = ()
    assumed: Sequence[Statement] = ()
    asked: tuple[str, ...] = ()

    @property
    def supposed(self) -> Supposed | None:
        """The hypothetical part: remedies, named capabilities and stated facts; None where there is none."""
        what_if = tuple(remedy.id for remedy in self.remedies)
        words = tuple(each.word for each in self.assumed)
        return Supposed(what_if, self.asked, words) if what_if or self.asked or words else None

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
    changes: Mended | None
    nearest: Nearest | None = None
    settle: tuple[Settling, ...] = ()


def evaluate(facts: Facts, asked: Requirements, file: str | None = None) -> Evaluation:
    """Evaluate a host. Pure. file: of its facts, as a command names it.

    Raises UsageError: Contradicted, NobodyThere, OtherSystem.
    """
    if is_linux(facts) != (asked.path in PATHS_OF_LINUX) and asked.path:
        raise other_system_error(HostFacts(facts), f"the path {asked.path}")
    known = HostFacts(stated(facts, asked.assumed))
    assessment = assess_as_if(known, asked.remedies, asked.stated)
    if asked.assumed:
        assessment = marked(assessment, {each.word: _without(facts, each, asked) for each in asked.assumed})
    changes = cheapest(known, asked.needs, asked.path, asked.workload)
    found = fits(assessment, asked.needs, asked.workload, asked.path)
    return Evaluation(
        facts.host, assessment, found, changes, _nearest(assessment, found, asked), shopping_list(assessment, file)
    )


def _without(facts: Facts, left_out: Statement, asked: Requirements) -> Assessment:
    others = [each for each in asked.assumed if each is not left_out]
    return assess_as_if(HostFacts(stated(facts, others)), asked.remedies, asked.stated)


def _nearest(assessment: Assessment, found: Sequence[Fit], asked: Requirements) -> Nearest | None:
    if asked.workload is None:
        return None
    best = next(fit for fit in found if is_meant(asked.path, fit.variant))
    variants = [variant for variant in assessment.every_variant if is_meant(asked.path, variant.path)]
    return nearest(variants, asked.needs, asked.workload, best)
