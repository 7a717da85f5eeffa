"""What a rule is: one condition, one finding. The runner adds subject and catalogue entry and handles unknown facts."""

from collections.abc import Callable, Iterable
from dataclasses import field
from enum import Enum, auto
from functools import lru_cache
from typing import Any

from winhost.core.answers import MissingFact, Unavailable
from winhost.core.dataclass import dataclass
from winhost.knowledge import catalogue
from winhost.model.once import once
from winhost.model.path import path_of
from winhost.model.reason import Reason, Severity
from winhost.resources.registry import titled


class Each(Enum):
    """What a rule gets besides the facts: nothing, one GPU, one VM, or GPUs and VM together."""

    HOST = auto()
    CARD = auto()
    VM = auto()
    ASSIGNMENT = auto()


class WhenUnknown(Enum):
    """What a missing fact causes: the path is unverified, or there is a note."""

    BLOCKS = auto()
    NOTES = auto()


# What nobody but the user can tell, and who tells it may well take the newest.
STATING = {"the version of vllm": "newer-vllm", "the version of toolkit": "newer-toolkit"}

HOST, CARD, VM, ASSIGNMENT = Each.HOST, Each.CARD, Each.VM, Each.ASSIGNMENT
BLOCKS, NOTES = WhenUnknown.BLOCKS, WhenUnknown.NOTES


@dataclass(frozen=True)
class Finding:
    """What a rule found; the rest of a reason is in the catalogue under its code. remedy: in the place of that of the
    catalogue, where it is one of what was observed; lacks: the fact that could not be read, where it is that; measured:
    on this very host, by `winhost probe`."""

    code: str
    severity: Severity = field(hash=False)  # code and observation tell findings apart well enough
    observed: str
    remedy: str | None = field(default=None, hash=False)
    lacks: str | None = field(default=None, hash=False)
    measured: bool = field(default=False, hash=False)


def unsupported(code: str, *, observed: str) -> Finding:
    """It cannot work, or winhost does not do it."""
    return Finding(code, Severity.UNSUPPORTED, observed)


def unverified(code: str, *, observed: str) -> Finding:
    """It may work; nobody has shown it."""
    return Finding(code, Severity.UNVERIFIED, observed)


def degraded(code: str, *, observed: str) -> Finding:
    """It works, with limitations."""
    return Finding(code, Severity.DEGRADED, observed)


def note(code: str, *, observed: str) -> Finding:
    """Useful to know in advance; changes no verdict."""
    return Finding(code, Severity.NOTE, observed)


Judge = Callable[..., Finding | None]


@dataclass(frozen=True)
class Rule:
    """A function with what it is about: a path, or one of its variants (`wsl2/bridged`).

    `judge` takes the facts, and the subject unless that is the host.
    """

    path: str
    unknown: WhenUnknown
    each: Each
    judge: Judge

    @property
    def name(self) -> str:
        return self.judge.__name__


RULES: list[Rule] = []


def rule(path: str, *, unknown: WhenUnknown, each: Each = HOST) -> Callable[[Judge], Judge]:
    """Declare a rule of `path`, and whether a missing fact blocks it."""

    def declare(judge: Judge) -> Judge:
        RULES.append(Rule(path, unknown, each, judge))
        return judge

    return declare


def reasons(variant: str, each: Each, subject: str, *seen: Any) -> tuple[Reason, ...]:
    """The findings of a variant's rules about one subject, each observation once. `seen`: the rules' arguments."""
    heaviest: dict[tuple[str, str], Finding] = {}
    for finding in _findings(variant, each, seen):
        known = heaviest.setdefault((finding.code, finding.observed), finding)
        if finding.severity.rank > known.severity.rank:
            heaviest[finding.code, finding.observed] = finding
    return tuple(reason_of(finding, subject) for finding in heaviest.values())


def _findings(variant: str, each: Each, seen: tuple[Any, ...]) -> Iterable[Finding]:
    """For a variant: the findings of its path, and its own."""
    path = path_of(variant)
    of_path = _of_host(path, *seen) if each is HOST else _of(path, each, seen)
    return of_path if path == variant else (*of_path, *_of(variant, each, seen))


@lru_cache(maxsize=8)
def _of_host(path: str, facts: Any) -> tuple[Finding, ...]:
    """Cached: the same for each variant of a path. Raises LookupError without rules: nothing would speak against it."""
    if not _rules(path, HOST):
        raise LookupError(f"no rules of {path} are imported")
    return _of(path, HOST, (facts,))


def _of(topic: str, each: Each, seen: tuple[Any, ...]) -> tuple[Finding, ...]:
    return tuple([finding for rule in _rules(topic, each) if (finding := _judged(rule, seen))])


def asks(variant: str, each: Each) -> bool:
    """Whether a variant has rules about this kind of subject."""
    return bool(_rules(path_of(variant), each) or _rules(variant, each))


@once
def _rules(topic: str, each: Each) -> tuple[Rule, ...]:
    return tuple(rule for rule in RULES if rule.path == topic and rule.each is each)


def gap(variant: str, subject: str, missing: MissingFact) -> Reason:
    """The reason where a whole resource could not be read, so no rule can be asked."""
    return reason_of(finding_of_gap(path_of(variant), BLOCKS, missing), subject)


def _judged(rule: Rule, seen: tuple[Any, ...]) -> Finding | None:
    try:
        return rule.judge(*seen)
    except MissingFact as missing:
        return finding_of_gap(path_of(rule.path), rule.unknown, missing)


def finding_of_gap(topic: str, unknown: WhenUnknown, missing: MissingFact) -> Finding:
    """What a missing fact causes for a path or capability."""
    if isinstance(missing.missing, Unavailable):
        return note(f"{topic}.later", observed=f"{titled(missing.missing.unavailable)} has to be set up first")
    severity = Severity.UNVERIFIED if unknown is BLOCKS else Severity.NOTE
    return Finding(f"{topic}.unknown", severity, str(missing), remedy=STATING.get(missing.fact), lacks=missing.fact)


def reason_of(finding: Finding, subject: str) -> Reason:
    """The finding with its catalogue entry. Raises UsageError: UnknownCode."""
    entry = catalogue.entry(finding.code)
    return Reason(
        code=finding.code,
        severity=finding.severity,
        observed=finding.observed,
        subject=subject,
        remedy=finding.remedy or entry.remedy,
        evidence=entry.evidence,
        sentence=entry.sentence,
        risks=entry.risks,
        lacks=finding.lacks,
    )
