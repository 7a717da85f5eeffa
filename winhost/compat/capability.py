"""Rules of capabilities: what a target can do, and what it rests on. One small function per rule, as for paths."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache

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
    way = target.way
    return tuple([_verdict(name, way, _findings(target, way, name), _measured(target, name)) for name in CAPABILITIES])


@lru_cache(maxsize=4096)
def _verdict(name: str, way: str, findings: tuple[Finding, ...], measured: str | None) -> CapabilityVerdict:
    """Most cells are the same on most hosts, so they are made once."""
    found = tuple(reason_of(finding, way) for finding in findings)
    grounds = catalogue.topics()[name].rests_on(way)
    if Verdict.of(found).rank < Verdict.UNVERIFIED.rank:
        found += _doubt(name, way, grounds)
    verdict = Verdict.of(found)
    because = tuple(dict.fromkeys(r.code for r in found if r.severity.rank == verdict.rank))
    told = () if verdict is Verdict.SUPPORTED else because
    return CapabilityVerdict(name, verdict, told, found, grounds, measured)


def _findings(target: Target, way: str, name: str) -> tuple[Finding, ...]:
    findings = [finding for rule in _asked(name, way) if (finding := _judged(rule, target))]
    return tuple(dict.fromkeys(findings) if len(findings) > 1 else findings)


@cache
def _asked(name: str, way: str) -> tuple[CapabilityRule, ...]:
    return tuple(rule for rule in RULES if rule.capability == name and rule.on & {way, path_of(way)})


def _judged(rule: CapabilityRule, target: Target) -> Finding | None:
    found = target.answer(rule.judge)
    return finding_of_gap(rule.capability, rule.unknown, found) if isinstance(found, MissingFact) else found


def _doubt(name: str, way: str, grounds: tuple[str, ...]) -> tuple[Reason, ...]:
    """Nothing is supported that nothing, or only a conclusion, supports."""
    if not grounds:
        return (reason_of(unverified(f"{name}.unshown", observed=f"on {way}"), way),)
    if all(catalogue.evidence()[key].kind == "inferred" for key in grounds):
        return (reason_of(unverified(f"{name}.inferred", observed=", ".join(grounds)), way),)
    return ()


def _measured(target: Target, name: str) -> str | None:
    told = target.answer(MEASURES[name]) if name in MEASURES else None
    return None if isinstance(told, MissingFact) else told
