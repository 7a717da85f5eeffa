"""Evaluates a host as if remedies were applied, and searches for the cheapest remedies that make a variant work."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import count

from packaging.version import Version

from winhost.compat.assess import assess
from winhost.compat.needs import Fit, Needs, fit_without_advice
from winhost.compat.rule import finding
from winhost.compat.stated import versions_after, with_stated_versions, with_stated_wsl
from winhost.core.answers import Json, Record
from winhost.core.dataclass import dataclass
from winhost.knowledge import catalogue
from winhost.model.errors import UsageError, did_you_mean, visible
from winhost.model.facts import Facts, with_state
from winhost.model.path import is_requested, path_of
from winhost.model.reason import HOST, Assessment, Finding, KnownRemedy, PathVerdict, Severity, Verdict
from winhost.model.workload import Workload
from winhost.resources.host import HostFacts

# The cost of a remedy, by who applies it: a purchase outweighs any number of settings.
COST = {"winhost": 1, "admin": 3, "firmware": 6, "money": 100}
_WORST_ACCEPTABLE = Verdict.DEGRADED  # the worst verdict that is worth a change
_MAX_REMEDIES = 6
_MAX_ASSESSMENTS = 400  # assessments of one search: far more than any shipped host needs


@dataclass(frozen=True)
class Repair:
    """The remedies that make a variant work, in the order in which they are needed, and the resulting fit."""

    remedies: tuple[KnownRemedy, ...]
    fit: Fit


def find_remedy(word: str) -> KnownRemedy:
    """Return the remedy with this name. Raises UsageError if it is unknown, or has no effect on facts."""
    if word not in catalogue.remedies():
        raise UsageError(
            "UnknownRemedy",
            what=f"there is no remedy '{visible(word)}'{did_you_mean(word, catalogue.remedies())}",
            hint="winhost assess --json and winhost explain CODE name the remedies of reasons",
        )
    if not catalogue.remedies()[word].can_be_judged:
        raise UsageError(
            "NothingToSee",
            what=f"the remedy '{word}' changes nothing that winhost can read, so a host cannot be evaluated as if it "
            "were applied",
        )
    return catalogue.remedies()[word]


def apply_remedies(facts: Facts, remedies: Iterable[KnownRemedy]) -> Facts:
    """Return the facts as they would be after these remedies. Unknown facts stay unknown."""
    for remedy in remedies:
        for resource, edits in remedy.effect.items():
            each = edits if isinstance(edits, list) else [{"match": {}, "set": edits}]
            facts = facts.edited(resource, partial(_apply_edits, each))
    return facts


def _apply_edits(edits: Iterable[Mapping[str, Mapping[str, Json]]], record: Record) -> Record:
    for edit in edits:
        if all(record.state.get(name) == value for name, value in edit["match"].items()):
            return with_state(record, edit["set"])
    return record


def assess_as_if(
    facts: HostFacts, remedies: Iterable[KnownRemedy], stated: Mapping[str, Version] | None = None
) -> Assessment:
    """Evaluate the host as it would be after these remedies. Verdicts that an unverified remedy improves are
    unverified.
    """
    remedies = tuple(remedies)
    known, then = with_stated_versions(facts, stated), versions_after(stated, remedies)
    judged = assess(
        known.updated(with_stated_wsl(apply_remedies(facts.document, remedies), then), then) if remedies else known
    )
    unverified = ", ".join(remedy.id for remedy in remedies if remedy.unverified)
    if not unverified:
        return judged
    without = assess(known)
    before = {each.path: each for each in (*without.paths, *without.every_variant)}
    return replace(judged, paths=tuple(_mark_unverified(path, before, unverified) for path in judged.paths))


def _mark_unverified(judged: PathVerdict, before: Mapping[str, PathVerdict], unverified: str) -> PathVerdict:
    variants = tuple(_mark_unverified(variant, before, unverified) for variant in judged.variants)
    if judged.verdict.rank >= min(Verdict.UNVERIFIED.rank, before[judged.path].verdict.rank):
        return replace(judged, variants=variants)
    doubt = finding(f"{path_of(judged.path)}.remedy-unseen", unverified, Severity.UNVERIFIED, HOST)
    reasons = (*judged.reasons, doubt)
    return replace(judged, verdict=Verdict.UNVERIFIED, because=(doubt.code,), reasons=reasons, variants=variants)


def find_cheapest_repair(
    facts: HostFacts, needs: Needs, path: str | None = None, workload: Workload | None = None
) -> Repair | None:
    """Find the cheapest remedies after which the path, or any path, meets the needs with a verified verdict; else None.

    Searches sets of remedies of blocking reasons, the cheapest first. A remedy may bring up new reasons, such as the
    role that a new Windows does not have; their remedies are tried in addition.
    """
    queue: list[tuple[int, int, int, tuple[KnownRemedy, ...]]] = [(0, 0, 0, ())]
    order, seen = count(1), {frozenset[str]()}
    for _ in range(_MAX_ASSESSMENTS):
        if not queue:
            return None
        cost, *_, applied = heappop(queue)
        judged = assess_as_if(facts, applied, workload.versions if workload else None)
        variants = [variant for variant in judged.every_variant if is_requested(path, variant.path)]
        found = [fit_without_advice(variant, needs, workload) for variant in variants]
        best = min(found, key=lambda fit: fit.verdict.rank)
        if best.verdict.rank <= _WORST_ACCEPTABLE.rank:
            return Repair(applied, best)
        for remedy in _next_remedies(variants, found, applied):
            key = frozenset(each.id for each in (*applied, remedy))
            if key not in seen:
                seen.add(key)
                heappush(queue, (cost + COST[remedy.who], len(key), next(order), (*applied, remedy)))
    return None


def _next_remedies(
    variants: Iterable[PathVerdict], found: Iterable[Fit], applied: tuple[KnownRemedy, ...]
) -> Iterator[KnownRemedy]:
    """Yield the remedies of each variant whose blocking reasons all have a remedy that was not applied yet."""
    if len(applied) == _MAX_REMEDIES:
        return
    for variant, fit in zip(variants, found, strict=True):
        offered = [reason.remedy for reason in _blocking_reasons(variant, fit)]
        remedies = [catalogue.remedies()[each.id] if each and each.id else None for each in offered]
        if all(remedy and remedy.can_be_judged and remedy not in applied for remedy in remedies):
            yield from (remedy for remedy in remedies if remedy)


def _blocking_reasons(variant: PathVerdict, fit: Fit) -> Iterator[Finding]:
    """Yield the reasons that prevent a variant from meeting the requirements."""
    own = [reason for reason in variant.every_reason if reason.code in variant.because]
    lacking = [reason for offered in fit.lacking for reason in offered.reasons]
    yield from (reason for reason in (*own, *lacking, *fit.denied) if reason.severity.rank > _WORST_ACCEPTABLE.rank)
