"""Rules of capabilities: what a target can do, and what it rests on. One small function per rule, as for paths."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from winhost.compat import catalogue
from winhost.compat.rule import Finding, Unread, finding_of_gap, reason_of, unverified
from winhost.compat.target import Target
from winhost.model.capability import CAPABILITIES
from winhost.model.facts import MissingFact
from winhost.model.path import PATHS, path_of
from winhost.model.reason import CapabilityVerdict, Reason, Verdict

Judge = Callable[[Target], Finding | None]
Measure = Callable[[Target], str | None]

EVERYWHERE = PATHS
NATIVE = ("dual-boot", "bare-metal")  # Linux owns the machine
IN_A_VM = ("dda", "gpu-p")
SHARED = ("wsl2", "wslc")  # the GPU stays with Windows' driver
WHOLE_CARD = ("dda", *NATIVE)  # Linux' own driver on the whole card


@dataclass(frozen=True)
class CapabilityRule:
    """on: the paths or ways where it is asked."""

    capability: str
    on: frozenset[str]
    unknown: Unread
    judge: Judge

    @property
    def name(self) -> str:
        return self.judge.__name__


RULES: list[CapabilityRule] = []
MEASURES: dict[str, Measure] = {}


def capability(name: str, *, on: tuple[str, ...], unknown: Unread) -> Callable[[Judge], Judge]:
    """Declare a rule of a capability, on which ways it holds, and whether a fact that could not be read blocks."""

    def declare(judge: Judge) -> Judge:
        RULES.append(CapabilityRule(name, frozenset(on), unknown, judge))
        return judge

    return declare


def measure(name: str) -> Callable[[Measure], Measure]:
    """Declare how much of a capability there is, or which: a text for people, None where there is nothing to say."""

    def declare(measured: Measure) -> Measure:
        MEASURES[name] = measured
        return measured

    return declare


def offers(target: Target) -> tuple[CapabilityVerdict, ...]:
    """What the target can do, capability by capability."""
    return tuple(_offer(target, name) for name in CAPABILITIES)


def _offer(target: Target, name: str) -> CapabilityVerdict:
    found = tuple(reason_of(finding, target.way) for finding in _findings(target, name))
    verdict = _verdict(name, target.way, found) if found else _undisputed(name, target.way)
    return replace(verdict, measure=_measured(target, name)) if name in MEASURES else verdict


@cache
def _undisputed(name: str, way: str) -> CapabilityVerdict:
    """Where no rule finds anything: most cells on most hosts, so it is made once."""
    return _verdict(name, way, ())


def _verdict(name: str, way: str, found: tuple[Reason, ...]) -> CapabilityVerdict:
    grounds = catalogue.topics()[name].rests_on(way)
    if Verdict.of(found).rank < Verdict.UNVERIFIED.rank:
        found += _doubt(name, way, grounds)
    verdict = Verdict.of(found)
    because = tuple(dict.fromkeys(r.code for r in found if r.severity.rank == verdict.rank))
    told = () if verdict is Verdict.SUPPORTED else because
    return CapabilityVerdict(name, verdict, told, found, grounds)


def _findings(target: Target, name: str) -> list[Finding]:
    findings = (_judged(rule, target) for rule in _asked(name, target.way))
    return list(dict.fromkeys(finding for finding in findings if finding))


@cache
def _asked(name: str, way: str) -> tuple[CapabilityRule, ...]:
    return tuple(rule for rule in RULES if rule.capability == name and rule.on & {way, path_of(way)})


def _judged(rule: CapabilityRule, target: Target) -> Finding | None:
    try:
        return rule.judge(target)
    except MissingFact as missing:
        return finding_of_gap(rule.capability, rule.unknown, missing)


def _doubt(name: str, way: str, grounds: tuple[str, ...]) -> tuple[Reason, ...]:
    """Nothing is supported that nothing, or only a conclusion, supports."""
    if not grounds:
        return (reason_of(unverified(f"{name}.unshown", observed=f"on {way}"), way),)
    if all(catalogue.evidence()[key].kind == "inferred" for key in grounds):
        return (reason_of(unverified(f"{name}.inferred", observed=", ".join(grounds)), way),)
    return ()


def _measured(target: Target, name: str) -> str | None:
    try:
        return MEASURES[name](target)
    except MissingFact:
        return None
