"""Rules of capabilities: what a target can do, and the evidence for it. One small function per rule, as for paths."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from winhost.compat.rule import Finding, WhenUnknown, finding_of_gap, reason_of, unverified
from winhost.compat.target import Target
from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass
from winhost.knowledge import catalogue
from winhost.model.capabilities import CAPABILITIES
from winhost.model.measured import Measurement
from winhost.model.once import once
from winhost.model.path import EVERY_PATH, path_of
from winhost.model.reason import CapabilityVerdict, Reason, Verdict

Judge = Callable[[Target], Finding | None]
Measure = Callable[[Target], str | None]
Settle = Callable[[Measurement], Finding | None]
RuleResult = tuple[tuple[Finding, ...], str | None]

EVERYWHERE = EVERY_PATH
NATIVE = ("dual-boot", "bare-metal", "linux")  # Linux owns the machine
IN_A_VM = ("dda", "gpu-p")
SHARED = ("wsl2", "wslc")  # the GPU stays with Windows' driver
WHOLE_CARD = ("dda", *NATIVE)  # Linux' own driver on the whole card


@dataclass(frozen=True)
class CapabilityRule:
    """on: the paths or variants to which it applies."""

    capability: str
    on: frozenset[str]
    unknown: WhenUnknown
    judge: Judge

    @property
    def name(self) -> str:
        return self.judge.__name__


RULES: list[CapabilityRule] = []
MEASURES: dict[str, Measure] = {}
SETTLED: dict[str, "MeasuredRule"] = {}
MEASURED_HERE = ("probe-measured",)  # evidence


def capability(name: str, *, on: tuple[str, ...], unknown: WhenUnknown) -> Callable[[Judge], Judge]:
    """Declare a rule of a capability, the variants to which it applies, and whether an unknown fact blocks."""

    def declare(judge: Judge) -> Judge:
        RULES.append(CapabilityRule(name, frozenset(on), unknown, judge))
        return judge

    return declare


def measure(name: str) -> Callable[[Measure], Measure]:
    """Declare the measure of a capability: a text for people, None where there is none."""

    def declare(measured: Measure) -> Measure:
        MEASURES[name] = measured
        return measured

    return declare


@dataclass(frozen=True)
class MeasuredRule:
    """What a probe of the target says of a capability: None where it does not settle it. over: the codes of findings
    that rest on documents, and that the measurement replaces.
    """

    over: frozenset[str]
    judge: Callable[[Measurement], Finding | None]


def settles(name: str, *, over: tuple[str, ...]) -> Callable[[Settle], Settle]:
    """Declare what a measurement says of a capability, whichever way, and which findings it replaces."""

    def declare(judge: Settle) -> Settle:
        SETTLED[name] = MeasuredRule(frozenset(f"{name}.{code}" for code in over), judge)
        return judge

    return declare


def offers(target: Target) -> tuple[CapabilityVerdict, ...]:
    """The verdict of each capability on the target."""
    variant = target.variant
    return tuple([_verdict(question.capability, variant, *target.answer(question)) for question in _questions(variant)])


@dataclass(frozen=True, eq=False)
class Question:
    """A capability's rules and its measure."""

    capability: str
    rules: tuple[CapabilityRule, ...]
    measure: Measure | None

    def __call__(self, target: Target) -> RuleResult:
        findings = _settled(self.capability, target, [found for rule in self.rules if (found := _judged(rule, target))])
        measured = _measured(self.measure, target) if self.measure else None
        return tuple(dict.fromkeys(findings) if len(findings) > 1 else findings), measured


@once
def _questions(variant: str) -> tuple[Question, ...]:
    if not RULES:
        raise LookupError("no rules of capabilities are imported: nothing would speak against any")
    places = {variant, path_of(variant)}
    asked = ((name, tuple(r for r in RULES if r.capability == name and r.on & places)) for name in CAPABILITIES)
    return tuple(_question(name, rules) for name, rules in asked)


@once
def _question(capability: str, rules: tuple[CapabilityRule, ...]) -> Question:
    """Shared by all variants with the same rules, so that its answer is computed once."""
    return Question(capability, rules, MEASURES.get(capability))


@lru_cache(maxsize=4096)
def _verdict(name: str, variant: str, findings: tuple[Finding, ...], measured: str | None) -> CapabilityVerdict:
    """Cached: most results are the same on most hosts."""
    found = tuple(reason_of(finding, variant) for finding in findings)
    measured_here = any(finding.measured for finding in findings)
    grounds = MEASURED_HERE if measured_here else catalogue.topics()[name].rests_on(variant)
    if Verdict.of(found).rank < Verdict.UNVERIFIED.rank:
        found += _doubt(name, variant, grounds)
    verdict = Verdict.of(found)
    because = tuple(dict.fromkeys(r.code for r in found if r.severity.rank == verdict.rank))
    decisive = () if verdict is Verdict.SUPPORTED else because
    return CapabilityVerdict(name, verdict, decisive, found, grounds, measured)


def _settled(name: str, target: Target, findings: list[Finding]) -> list[Finding]:
    """The findings, with what was measured in the place of what documents say."""
    rule, measurement = SETTLED.get(name), target.measurement
    if rule is None or measurement is None:
        return findings
    finding = rule.judge(measurement)
    if finding is None:
        return findings
    observed = f"{finding.observed} ({measurement})"
    left = [each for each in findings if each.code not in rule.over]
    return [*left, replace(finding, observed=observed, measured=True)]


def _judged(rule: CapabilityRule, target: Target) -> Finding | None:
    try:
        return rule.judge(target)
    except MissingFact as missing:
        return finding_of_gap(rule.capability, rule.unknown, missing)


def _doubt(name: str, variant: str, grounds: tuple[str, ...]) -> tuple[Reason, ...]:
    """The reason why a capability without evidence, or with inferred evidence only, is unverified."""
    if not grounds:
        return (reason_of(unverified(f"{name}.unshown", observed=f"on {variant}"), variant),)
    if all(catalogue.evidence()[key].kind == "inferred" for key in grounds):
        return (reason_of(unverified(f"{name}.inferred", observed=", ".join(grounds)), variant),)
    return ()


def _measured(measure: Measure, target: Target) -> str | None:
    try:
        return measure(target)
    except MissingFact:
        return None
