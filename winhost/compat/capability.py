"""The verdict of each capability on the Linux that would serve: what rules find, and what was measured."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from operator import itemgetter

from winhost.compat.rule import (
    TARGET,
    UPGRADE_REMEDIES,
    Judge,
    Outcome,
    Rule,
    finding,
    limit_to_evidence,
    parse_versions,
    rules_of,
    with_subject,
)
from winhost.compat.target import Target, Versions
from winhost.core.dataclass import dataclass
from winhost.knowledge import catalogue
from winhost.knowledge.versions import find_unchecked_version, subjects_with_lines
from winhost.model.capabilities import CAPABILITIES
from winhost.model.measured import Measurement
from winhost.model.once import once
from winhost.model.path import path_of
from winhost.model.reason import CapabilityVerdict, Finding, Severity, Verdict

Measure = Callable[[Target], str | None]
_Pick = Callable[[Sequence[Outcome]], tuple[Outcome, ...]]
MeasurementJudge = Callable[[Measurement], Finding | None]

MEASURES: dict[str, Measure] = {}
MEASURED_RULES: dict[str, "MeasuredRule"] = {}
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


def judges_measurement(name: str, *, over: tuple[str, ...]) -> Callable[[MeasurementJudge], MeasurementJudge]:
    """Declare what a measurement says of a capability, whichever way, and which findings it replaces."""

    def declare(judge: MeasurementJudge) -> MeasurementJudge:
        MEASURED_RULES[name] = MeasuredRule(frozenset(f"{name}.{code}" for code in over), judge)
        return judge

    return declare


@dataclass(frozen=True, eq=False)
class CapabilityRules:
    """The rules of a capability that apply to a variant."""

    capability: str
    variant: str

    @cached_property
    def _rules(self) -> tuple[Rule, ...]:
        return rules_of(self.capability, self.variant, TARGET)

    @cached_property
    def _conditional(self) -> tuple[Rule, ...]:
        return tuple(rule for rule in self._rules if not _is_constant(rule))

    @cached_property
    def judges(self) -> tuple[Judge, ...]:
        """The judges of its rules that depend on the host, then the one that measures its amount."""
        return (*(rule.judge for rule in self._conditional), MEASURES.get(self.capability, _no_amount))

    def found(self, outcomes: Sequence[Outcome]) -> tuple[Finding, ...]:
        """The findings that hold on the variant for every host, and those of the judges' outcomes."""
        names = {"variant": self.variant, "path": path_of(self.variant)}
        constant = filter(_is_constant, self._rules)
        always = [finding(rule.code, rule.row.observed.format_map(names)) for rule in constant]
        seen = zip(self._conditional, outcomes, strict=False)
        here = [each.found(outcome, self.capability) for each, outcome in seen if outcome is not None]
        return tuple(dict.fromkeys([*always, *filter(None, here)]))


def _no_amount(_: Target) -> None:
    """The amount of a capability that has none."""


def _is_constant(rule: Rule) -> bool:
    row = rule.row
    named = row.observed.replace("{variant}", "").replace("{path}", "")
    return row.asks is None and not row.when and not row.which and "{" not in named


def offers(target: Target) -> tuple[CapabilityVerdict, ...]:
    """The verdict of each capability on the target."""
    judges, capabilities = _judges(target.variant)
    outcomes = target.facts.outcomes_at(target.scopes, judges, target)
    verdict, measured_here = _verdicts(target.versions), target.facts.measured
    if measured_here:
        return tuple([_verdict_with_measurement(target, rules, its(outcomes)) for rules, its in capabilities])
    return tuple([verdict(rules, its(outcomes)) for rules, its in capabilities])


@once
def _judges(variant: str) -> tuple[tuple[Judge, ...], tuple[tuple[CapabilityRules, _Pick], ...]]:
    """All judges of the capabilities of a variant, and what picks those of each capability from their outcomes."""
    every = [CapabilityRules(name, variant) for name in CAPABILITIES]
    judges = tuple(dict.fromkeys(judge for rules in every for judge in rules.judges))
    return judges, tuple((rules, _pick(tuple(map(judges.index, rules.judges)))) for rules in every)


def _pick(positions: tuple[int, ...]) -> _Pick:
    return itemgetter(*positions) if len(positions) > 1 else lambda outcomes: (outcomes[positions[0]],)


@lru_cache(maxsize=64)
def _verdicts(versions: Versions) -> Callable[[CapabilityRules, tuple[Outcome, ...]], CapabilityVerdict]:
    """Return a function that makes verdicts for these versions. It caches them: most are the same on most hosts, and
    comparing versions is the slowest part.
    """

    def verdict(rules: CapabilityRules, outcomes: tuple[Outcome, ...]) -> CapabilityVerdict:
        return _verdict(versions, rules, rules.found(outcomes), outcomes[-1])

    return lru_cache(maxsize=4096)(verdict)


def _verdict(
    versions: Versions, rules: CapabilityRules, findings: tuple[Finding, ...], amount: Outcome
) -> CapabilityVerdict:
    name, variant = rules.capability, rules.variant
    found = tuple(with_subject(limit_to_evidence(each, versions), variant) for each in findings)
    measured_here = any(each.measured_here for each in findings)
    grounds = MEASURED_HERE if measured_here else catalogue.topics()[name].grounds_for(variant)
    if Verdict.of(found).rank < Verdict.UNVERIFIED.rank:
        found += _grounds_missing(name, variant, grounds, versions, shown=Verdict.of(found) is not Verdict.SUPPORTED)
    verdict = Verdict.of(found)
    measured = amount if isinstance(amount, str) else None
    return CapabilityVerdict(name, verdict, verdict.because(found), found, grounds, measured)


def _verdict_with_measurement(
    target: Target, rules: CapabilityRules, outcomes: tuple[Outcome, ...]
) -> CapabilityVerdict:
    """The verdict with what was measured in the place of what documents say."""
    findings, rule, measurement = rules.found(outcomes), MEASURED_RULES.get(rules.capability), target.measurement
    shown = rule.judge(measurement) if rule and measurement else None
    if rule and shown:
        others = [each for each in findings if each.code not in rule.over]
        findings = (*others, replace(shown, observed=f"{shown.observed} ({measurement})"))
    return _verdict(target.versions, rules, findings, outcomes[-1])


def _grounds_missing(
    name: str, variant: str, grounds: tuple[str, ...], versions: Versions, *, shown: bool
) -> tuple[Finding, ...]:
    """The reason why a capability is unverified whose evidence is missing, inferred, or of other versions than the
    host's. shown: a finding says how far it works here, so that where the evidence begins is no limit.
    """
    if not grounds:
        return (finding(f"{name}.unshown", f"on {variant}", Severity.UNVERIFIED, variant),)
    if all(catalogue.evidence()[key].kind == "inferred" for key in grounds):
        return (finding(f"{name}.inferred", ", ".join(grounds), Severity.UNVERIFIED, variant),)
    older = subjects_with_lines() if shown else ()
    if short := find_unchecked_version(catalogue.evidence_of(grounds), parse_versions(versions), older):
        remedy = UPGRADE_REMEDIES.get(short.subject) if short.older else None
        return (finding(f"{name}.outdated", short.text, Severity.UNVERIFIED, variant, remedy=remedy),)
    return ()
