"""Rules of capabilities: what a target can do, and the evidence for it. One small function per rule, as for paths."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from winhost.compat.rule import Finding, WhenUnknown, finding, finding_of_gap, reason_of, unverified
from winhost.compat.target import Target
from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass
from winhost.knowledge import catalogue
from winhost.model.capabilities import CAPABILITIES
from winhost.model.measured import Measurement
from winhost.model.once import once
from winhost.model.path import EVERY_PATH, path_of
from winhost.model.reason import CapabilityVerdict, Reason, Verdict

Judge = Callable[[Target], str | Finding | None]
J = TypeVar("J", bound=Judge)
Measure = Callable[[Target], str | None]
Settle = Callable[[Measurement], Finding | None]

EVERYWHERE = EVERY_PATH
NATIVE = ("dual-boot", "bare-metal", "linux")  # Linux owns the machine
IN_A_VM = ("dda", "gpu-p")
SHARED = ("wsl2", "wslc")  # the GPU stays with Windows' driver
WHOLE_CARD = ("dda", *NATIVE)  # Linux' own driver on the whole card


@dataclass(frozen=True, eq=False)
class CapabilityRule:
    """on: the paths or variants to which it applies; code: of its row, or of the capability alone where it has several;
    stated: what an unknown fact causes, where no row says it.
    """

    capability: str
    code: str
    on: frozenset[str]
    judge: Judge
    stated: WhenUnknown | None

    @property
    def unknown(self) -> WhenUnknown:
        return self.stated or WhenUnknown(catalogue.entry(self.code).unknown)

    @property
    def name(self) -> str:
        return self.judge.__name__

    def __call__(self, target: Target) -> Finding | None:
        try:
            found = self.judge(target)
        except MissingFact as missing:
            return finding_of_gap(self.capability, self.unknown, missing)
        return finding(self.code, found) if isinstance(found, str) else found


RULES: list[CapabilityRule] = []
MEASURES: dict[str, Measure] = {}
SETTLED: dict[str, "MeasuredRule"] = {}
MEASURED_HERE = ("probe-measured",)  # evidence


def capability(code: str, *, on: tuple[str, ...], unknown: WhenUnknown | None = None) -> Callable[[J], J]:
    """Declare a rule of a capability by the code of its row, and the variants to which it applies. One that finds
    several names the capability alone, and says whether an unknown fact blocks.
    """

    def declare(judge: J) -> J:
        RULES.append(CapabilityRule(code.partition(".")[0], code, frozenset(on), judge, unknown))
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
    """The verdict of each capability on the target. Each rule is asked once for all variants that it tells alike."""
    variant, answer = target.variant, target.answer
    return tuple(
        [
            _verdict(
                name,
                variant,
                _settled(name, target, [found for rule in rules if (found := answer(rule))]),
                answer(_measures(name)),
            )
            for name, rules in _questions(variant)
        ]
    )


@once
def _questions(variant: str) -> tuple[tuple[str, tuple[CapabilityRule, ...]], ...]:
    """Each capability with the rules that apply to a variant."""
    if not RULES:
        raise LookupError("no rules of capabilities are imported: nothing would speak against any")
    places = {variant, path_of(variant)}
    return tuple((name, tuple(r for r in RULES if r.capability == name and r.on & places)) for name in CAPABILITIES)


@once
def _measures(name: str) -> Measure:
    measure = MEASURES.get(name)

    def measured(target: Target) -> str | None:
        try:
            return measure(target) if measure else None
        except MissingFact:
            return None

    return measured


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


def _settled(name: str, target: Target, findings: list[Finding]) -> tuple[Finding, ...]:
    """The findings, each once, with what was measured in the place of what documents say."""
    rule = SETTLED.get(name)
    measurement = target.measurement if rule else None
    shown = rule.judge(measurement) if rule and measurement else None
    if rule and shown:
        findings = [each for each in findings if each.code not in rule.over]
        findings.append(replace(shown, observed=f"{shown.observed} ({measurement})", measured=True))
    return tuple(dict.fromkeys(findings) if len(findings) > 1 else findings)


def _doubt(name: str, variant: str, grounds: tuple[str, ...]) -> tuple[Reason, ...]:
    """The reason why a capability without evidence, or with inferred evidence only, is unverified."""
    if not grounds:
        return (reason_of(unverified(f"{name}.unshown", observed=f"on {variant}"), variant),)
    if all(catalogue.evidence()[key].kind == "inferred" for key in grounds):
        return (reason_of(unverified(f"{name}.inferred", observed=", ".join(grounds)), variant),)
    return ()
