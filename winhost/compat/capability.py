"""The verdict of each capability on the Linux that would serve, from rules and from measurements."""

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
_Picker = Callable[[Sequence[Outcome]], tuple[Outcome, ...]]
MeasurementJudge = Callable[[Measurement], Finding | None]

MEASURES: dict[str, Measure] = {}
MEASURED_RULES: dict[str, "MeasuredRule"] = {}
MEASURED_HERE = ("probe-measured",)  # ids of evidence


def measure(name: str) -> Callable[[Measure], Measure]:
    """Declare the function that describes the amount of a capability to people; it returns None where there is none."""

    def declare(function: Measure) -> Measure:
        MEASURES[name] = function
        return function

    return declare


@dataclass(frozen=True)
class MeasuredRule:
    """Judges a capability by a probe of the target. judge: returns None where the probe does not decide; replaces: the
    codes of findings from documents that the measurement replaces.
    """

    replaces: frozenset[str]
    judge: Callable[[Measurement], Finding | None]


def judges_measurement(name: str, *, replaces: tuple[str, ...]) -> Callable[[MeasurementJudge], MeasurementJudge]:
    """Declare the function that judges a capability by a measurement, and the codes that its finding replaces."""

    def declare(judge: MeasurementJudge) -> MeasurementJudge:
        MEASURED_RULES[name] = MeasuredRule(frozenset(f"{name}.{code}" for code in replaces), judge)
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
        """The judges of the rules that depend on the host, then the function that describes the amount."""
        return (*(rule.judge for rule in self._conditional), MEASURES.get(self.capability, _no_amount))

    def to_findings(self, outcomes: Sequence[Outcome]) -> tuple[Finding, ...]:
        """Return the findings that hold for the variant on every host, and those of the judges' outcomes."""
        names = {"variant": self.variant, "path": path_of(self.variant)}
        constant = filter(_is_constant, self._rules)
        always = [finding(rule.code, rule.row.observed.format_map(names)) for rule in constant]
        judged = zip(self._conditional, outcomes, strict=False)
        on_host = [rule.to_finding(outcome, self.capability) for rule, outcome in judged if outcome is not None]
        return tuple(dict.fromkeys([*always, *filter(None, on_host)]))


def _no_amount(_: Target) -> None:
    """The amount of a capability that has none."""


def _is_constant(rule: Rule) -> bool:
    """Tell whether a rule holds on every host: its row has no condition and names no facts."""
    row = rule.row
    named = row.observed.replace("{variant}", "").replace("{path}", "")
    return row.asks is None and not row.when and not row.which and "{" not in named


def offers(target: Target) -> tuple[CapabilityVerdict, ...]:
    """Judge each capability on the target."""
    judges, capabilities = _judges(target.variant)
    outcomes = target.facts.outcomes_at(target.scopes, judges, target)
    if target.facts.measured:
        return tuple([_verdict_with_measurement(target, rules, pick(outcomes)) for rules, pick in capabilities])
    verdict = _verdicts(target.versions)
    return tuple([verdict(rules, pick(outcomes)) for rules, pick in capabilities])


@once
def _judges(variant: str) -> tuple[tuple[Judge, ...], tuple[tuple[CapabilityRules, _Picker], ...]]:
    """Return all judges of the capabilities of a variant; and for each capability its rules, with a function that picks
    their outcomes from those of all judges.
    """
    capabilities = [CapabilityRules(name, variant) for name in CAPABILITIES]
    judges = tuple(dict.fromkeys(judge for rules in capabilities for judge in rules.judges))
    return judges, tuple((rules, _picker(tuple(map(judges.index, rules.judges)))) for rules in capabilities)


def _picker(positions: tuple[int, ...]) -> _Picker:
    return itemgetter(*positions) if len(positions) > 1 else lambda outcomes: (outcomes[positions[0]],)


@lru_cache(maxsize=64)
def _verdicts(versions: Versions) -> Callable[[CapabilityRules, tuple[Outcome, ...]], CapabilityVerdict]:
    """Return a function that makes verdicts for these versions. It caches them: most are the same on most hosts, and
    comparing versions is the slowest part.
    """

    def verdict(rules: CapabilityRules, outcomes: tuple[Outcome, ...]) -> CapabilityVerdict:
        return _verdict(versions, rules, rules.to_findings(outcomes), outcomes[-1])

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
    """Make the verdict of a capability in which the finding of a measurement replaces those from documents."""
    findings, rule, measurement = rules.to_findings(outcomes), MEASURED_RULES.get(rules.capability), target.measurement
    measured = rule.judge(measurement) if rule and measurement else None
    if rule and measured:
        others = [each for each in findings if each.code not in rule.replaces]
        findings = (*others, replace(measured, observed=f"{measured.observed} ({measurement})"))
    return _verdict(target.versions, rules, findings, outcomes[-1])


def _grounds_missing(
    name: str, variant: str, grounds: tuple[str, ...], versions: Versions, *, shown: bool
) -> tuple[Finding, ...]:
    """Return the reason why a capability is unverified: its evidence is missing, inferred, or does not cover the host's
    versions. shown: a finding says how far it works here, so that versions older than the evidence are no reason.
    """
    if not grounds:
        return (finding(f"{name}.unshown", f"on {variant}", Severity.UNVERIFIED, variant),)
    if all(catalogue.evidence()[key].kind == "inferred" for key in grounds):
        return (finding(f"{name}.inferred", ", ".join(grounds), Severity.UNVERIFIED, variant),)
    older = subjects_with_lines() if shown else ()
    if unchecked := find_unchecked_version(catalogue.evidence_of(grounds), parse_versions(versions), older):
        remedy = UPGRADE_REMEDIES.get(unchecked.subject) if unchecked.older else None
        return (finding(f"{name}.outdated", unchecked.text, Severity.UNVERIFIED, variant, remedy=remedy),)
    return ()
