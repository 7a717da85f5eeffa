"""Evaluation as if remedies were done, and the search for the cheapest remedies that make a variant work."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import count

from packaging.version import Version

from winhost.compat.assess import assess
from winhost.compat.needs import Fit, Needs, fit_as_it_is
from winhost.compat.rule import finding
from winhost.compat.stated import after, as_stated, with_wsl
from winhost.core.answers import Json, Record
from winhost.core.dataclass import dataclass
from winhost.knowledge import catalogue
from winhost.model.errors import UsageError, did_you_mean, visible
from winhost.model.facts import Facts, with_state
from winhost.model.path import is_meant, path_of
from winhost.model.reason import HOST, Assessment, Finding, KnownRemedy, PathVerdict, Severity, Verdict
from winhost.model.workload import Workload
from winhost.resources.host import HostFacts

# What a remedy costs whoever does it: a purchase outweighs any number of settings.
COST = {"winhost": 1, "admin": 3, "firmware": 6, "money": 100}
_GOOD = Verdict.DEGRADED  # the worst verdict that is worth a change
_MOST_REMEDIES = 6
_MOST_LOOKS = 400  # judgements of one search: far more than any shipped host needs


@dataclass(frozen=True)
class Mended:
    """The remedies that make a variant work, in the order in which they are needed, and the resulting fit."""

    remedies: tuple[KnownRemedy, ...]
    fit: Fit


def named(word: str) -> KnownRemedy:
    """The remedy of this name, of those whose effect is seen in facts. Raises UsageError."""
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


def as_if(facts: Facts, remedies: Iterable[KnownRemedy]) -> Facts:
    """The facts after these remedies. What could not be read stays unknown."""
    for remedy in remedies:
        for resource, edits in remedy.effect.items():
            each = edits if isinstance(edits, list) else [{"match": {}, "set": edits}]
            facts = facts.edited(resource, partial(_edited, each))
    return facts


def _edited(edits: Iterable[Mapping[str, Mapping[str, Json]]], record: Record) -> Record:
    for edit in edits:
        if all(record.state.get(name) == value for name, value in edit["match"].items()):
            return with_state(record, edit["set"])
    return record


def assess_as_if(
    facts: HostFacts, remedies: Iterable[KnownRemedy], stated: Mapping[str, Version] | None = None
) -> Assessment:
    """Evaluate the host as it would be. What only an unverified remedy improves is unverified."""
    mends = tuple(remedies)
    known, then = as_stated(facts, stated), after(stated, mends)
    judged = assess(known.updated(with_wsl(as_if(facts.document, mends), then), then) if mends else known)
    doubtful = ", ".join(mend.id for mend in mends if mend.unverified)
    if not doubtful:
        return judged
    without = assess(known)
    before = {each.path: each for each in (*without.paths, *without.every_variant)}
    return replace(judged, paths=tuple(_doubted(path, before, doubtful) for path in judged.paths))


def _doubted(judged: PathVerdict, before: Mapping[str, PathVerdict], doubtful: str) -> PathVerdict:
    variants = tuple(_doubted(variant, before, doubtful) for variant in judged.variants)
    if judged.verdict.rank >= min(Verdict.UNVERIFIED.rank, before[judged.path].verdict.rank):
        return replace(judged, variants=variants)
    doubt = finding(f"{path_of(judged.path)}.remedy-unseen", doubtful, Severity.UNVERIFIED, HOST)
    reasons = (*judged.reasons, doubt)
    return replace(judged, verdict=Verdict.UNVERIFIED, because=(doubt.code,), reasons=reasons, variants=variants)


def cheapest(
    facts: HostFacts, needs: Needs, path: str | None = None, workload: Workload | None = None
) -> Mended | None:
    """The cheapest remedies after which the path, or any, meets the needs with a verified verdict, or None.

    A search over remedies of the reasons that stand in the way, cheapest first: what one remedy brings to light, such
    as the role that a new Windows lacks, is looked at with the next.
    """
    queue: list[tuple[int, int, int, tuple[KnownRemedy, ...]]] = [(0, 0, 0, ())]
    order, seen = count(1), {frozenset[str]()}
    for _ in range(_MOST_LOOKS):
        if not queue:
            return None
        cost, *_, done = heappop(queue)
        judged = assess_as_if(facts, done, workload.versions if workload else None)
        variants = [variant for variant in judged.every_variant if is_meant(path, variant.path)]
        found = [fit_as_it_is(variant, needs, workload) for variant in variants]
        best = min(found, key=lambda fit: fit.verdict.rank)
        if best.verdict.rank <= _GOOD.rank:
            return Mended(done, best)
        for mend in _next(variants, found, done):
            key = frozenset(each.id for each in (*done, mend))
            if key not in seen:
                seen.add(key)
                heappush(queue, (cost + COST[mend.who], len(key), next(order), (*done, mend)))
    return None


def _next(
    variants: Iterable[PathVerdict], found: Iterable[Fit], done: tuple[KnownRemedy, ...]
) -> Iterator[KnownRemedy]:
    """Remedies of those variants of which every blocking reason has one."""
    if len(done) == _MOST_REMEDIES:
        return
    for variant, fit in zip(variants, found, strict=True):
        offered = [reason.remedy for reason in _blocking(variant, fit)]
        mends = [catalogue.remedies()[each.id] if each and each.id else None for each in offered]
        if all(mend and mend.can_be_judged and mend not in done for mend in mends):
            yield from (mend for mend in mends if mend)


def _blocking(variant: PathVerdict, fit: Fit) -> Iterator[Finding]:
    """Reasons that prevent a variant from meeting the requirements."""
    own = [reason for reason in variant.every_reason if reason.code in variant.because]
    lacking = [reason for offered in fit.lacking for reason in offered.reasons]
    yield from (reason for reason in (*own, *lacking, *fit.denied) if reason.severity.rank > _GOOD.rank)
