"""The verdict of each capability on the Linux that would serve: what rules find, and what was measured."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from typing import Any

from winhost.compat.rule import (
    NEWER,
    TARGET,
    InRow,
    Judge,
    Outcome,
    Rule,
    about_subject,
    finding,
    parsed,
    rules_of,
    within_reach,
)
from winhost.compat.target import Target, Versions
from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass
from winhost.knowledge import catalogue
from winhost.knowledge.versions import beyond, bounded
from winhost.model.capabilities import CAPABILITIES
from winhost.model.measured import Measurement
from winhost.model.once import once
from winhost.model.path import path_of
from winhost.model.reason import CapabilityVerdict, Finding, Severity, Verdict

Measure = Callable[[Target], str | None]
Settle = Callable[[Measurement], Finding | None]

MEASURES: dict[str, Measure] = {}
SETTLED: dict[str, "MeasuredRule"] = {}
MEASURED_HERE = ("probe-measured",)  # evidence


def measure(name: str) -> Callable[[Measure], Measure]:
    """Declare the measure of a capability: a text for people, None where there is none."""

    def declare(measured: Measure) -> Measure:
        MEASURES[name] = measured
        return measured

    return declare


@dataclass(frozen=True)
class MeasuredRule:
    """Judges a capability by a probe of the target: None where the probe does not settle it. over: the codes of
    findings from documents that the measurement replaces.
    """

    over: frozenset[str]
    judge: Callable[[Measurement], Finding | None]


def settles(name: str, *, over: tuple[str, ...]) -> Callable[[Settle], Settle]:
    """Declare what a measurement says of a capability, whichever way, and which findings it replaces."""

    def declare(judge: Settle) -> Settle:
        SETTLED[name] = MeasuredRule(frozenset(f"{name}.{code}" for code in over), judge)
        return judge

    return declare


@dataclass(frozen=True, eq=False)
class CapabilityRules:
    """The rules of a capability that apply to a variant."""

    capability: str
    rules: tuple[Rule, ...]

    @cached_property
    def conditional(self) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.rules if not _is_always_so(rule))

    def always(self, variant: str) -> tuple[Finding, ...]:
        """Return the findings that hold on a variant for every host."""
        place = {"variant": variant, "path": path_of(variant)}
        rules = [rule for rule in self.rules if _is_always_so(rule)]
        return tuple(finding(rule.code, rule.row.observed.format_map(place)) for rule in rules)


def _is_always_so(rule: Rule) -> bool:
    row = rule.row
    named = row.observed.replace("{variant}", "").replace("{path}", "")
    return isinstance(rule.judge, InRow) and not row.when and not row.which and "{" not in named


def found_on(rules: CapabilityRules, target: Target) -> tuple[Finding, ...]:
    """The findings about a capability of the Linux that would serve, besides those that are always so."""
    found, keep, places = [], target.facts.keep_for, target.places
    for each in rules.conditional:
        outcome = keep(places, each.judge, _outcome_on, each.judge, target)
        if outcome is not None and (one := each.found(outcome, rules.capability)):
            found.append(one)
    return tuple(dict.fromkeys(found)) if len(found) > 1 else tuple(found)


def _outcome_on(judge: Judge, target: Target) -> Outcome:
    try:
        return judge(target)
    except MissingFact as missing:
        return missing.with_traceback(None)  # which would keep all frames


def offers(target: Target) -> tuple[CapabilityVerdict, ...]:
    """The verdict of each capability on the target."""
    variant, measured_here = target.variant, target.facts.measured
    keep, places, verdict = target.facts.keep_for, target.places, _verdicts(variant, target.versions)
    offered = []
    for name, rules, always, measure in _questions(variant):
        findings = (*always, *keep(places, rules, found_on, rules, target))
        measured = keep(places, measure, _measured, measure, target) if measure else None
        if measured_here:
            findings = _settled(name, target, findings)
        offered.append(verdict(name, findings, measured))
    return tuple(offered)


@once
def _questions(variant: str) -> tuple[tuple[str, CapabilityRules, tuple[Finding, ...], Measure | None], ...]:
    """Return for each capability the rules that apply to a variant, findings that always hold on it, and its
    measure.
    """
    found = ((name, _shared(name, rules_of(name, variant, TARGET))) for name in CAPABILITIES)
    return tuple((name, rules, rules.always(variant), MEASURES.get(name)) for name, rules in found)


@once
def _shared(name: str, rules: tuple[Rule, ...]) -> CapabilityRules:
    """One for all variants to which the same rules apply."""
    return CapabilityRules(name, rules)


def _measured(measure: Any, target: Target) -> str | None:
    try:
        found: str | None = measure(target)
    except MissingFact:
        return None
    return found


@lru_cache(maxsize=64)
def _verdicts(variant: str, versions: Versions) -> Callable[[str, tuple[Finding, ...], str | None], CapabilityVerdict]:
    """Return what makes the verdicts of a variant. Kept: most are the same on most hosts, and comparing versions takes
    longer than all else.
    """
    return lru_cache(maxsize=512)(partial(_verdict, variant, versions))


def _verdict(
    variant: str, versions: Versions, name: str, findings: tuple[Finding, ...], measured: str | None
) -> CapabilityVerdict:
    found = tuple(about_subject(within_reach(each, versions), variant) for each in findings)
    measured_here = any(each.measured_here for each in findings)
    grounds = MEASURED_HERE if measured_here else catalogue.topics()[name].rests_on(variant)
    if Verdict.of(found).rank < Verdict.UNVERIFIED.rank:
        found += _doubt(name, variant, grounds, versions, shown=Verdict.of(found) is not Verdict.SUPPORTED)
    verdict = Verdict.of(found)
    because = tuple(dict.fromkeys(r.code for r in found if r.severity.rank == verdict.rank))
    decisive = () if verdict is Verdict.SUPPORTED else because
    return CapabilityVerdict(name, verdict, decisive, found, grounds, measured)


def _settled(name: str, target: Target, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings, each once, with what was measured in the place of what documents say."""
    rule = SETTLED.get(name)
    measurement = target.measurement if rule else None
    shown = rule.judge(measurement) if rule and measurement else None
    if rule and shown:
        others = [each for each in findings if each.code not in rule.over]
        return (*others, replace(shown, observed=f"{shown.observed} ({measurement})"))
    return findings


def _doubt(
    name: str, variant: str, grounds: tuple[str, ...], versions: Versions, *, shown: bool
) -> tuple[Finding, ...]:
    """The reason why a capability is unverified whose evidence is missing, inferred, or of other versions than the
    host's. shown: a finding says how far it works here, so that where the evidence begins is no limit.
    """
    if not grounds:
        return (finding(f"{name}.unshown", f"on {variant}", Severity.UNVERIFIED, variant),)
    if all(catalogue.evidence()[key].kind == "inferred" for key in grounds):
        return (finding(f"{name}.inferred", ", ".join(grounds), Severity.UNVERIFIED, variant),)
    older = bounded() if shown else ()
    if short := beyond((catalogue.evidence()[key] for key in grounds), parsed(versions), older):
        remedy = NEWER.get(short.subject) if short.older else None
        return (finding(f"{name}.outdated", short.said, Severity.UNVERIFIED, variant, remedy=remedy),)
    return ()
