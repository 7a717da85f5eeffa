"""The runner of rules over facts: each once for a host and subject, what was not read as unknown, in their order.

What a rule finds is a row of the catalogue: its code, severity, sentence, remedy and evidence. Its condition is in that
row (`when`, or `asks` for a question of compat/common.py that several paths share), or in a function declared for it.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from enum import Enum, auto
from typing import Any, TypeVar

from winhost.compat import common
from winhost.core.answers import MissingFact, Unavailable
from winhost.core.dataclass import dataclass
from winhost.findings.condition import evaluate
from winhost.knowledge import catalogue
from winhost.knowledge.catalogue import CatalogueEntry
from winhost.model.once import once
from winhost.model.path import path_of
from winhost.model.reason import Reason, Severity
from winhost.resources.host import Card, HostFacts
from winhost.resources.registry import RESOURCE_TYPES, titled


class Each(Enum):
    """What a rule gets besides the facts: nothing, one GPU, one VM, or GPUs and VM together."""

    HOST = auto()
    CARD = auto()
    VM = auto()
    ASSIGNMENT = auto()


class WhenUnknown(Enum):
    """What a missing fact causes: the path is unverified, or there is a note."""

    BLOCKS = "blocks"
    NOTES = "notes"


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


# What was observed, where the finding applies. A rule with several codes or severities returns the finding itself.
Judge = Callable[..., str | Finding | None]
J = TypeVar("J", bound=Judge)


@dataclass(frozen=True)
class Rule:
    """`judge` takes the facts, and the subject unless that is the host."""

    code: str
    each: Each
    judge: Judge

    @property
    def row(self) -> CatalogueEntry:
        return catalogue.entry(self.code)

    @property
    def topics(self) -> tuple[str, ...]:
        """The path, or those of its variants that it is about."""
        return self.row.only or (self.path,)

    @property
    def path(self) -> str:
        return self.code.partition(".")[0]

    @property
    def name(self) -> str:
        return self.judge.__name__

    @property
    def unknown(self) -> WhenUnknown:
        return WhenUnknown(self.row.unknown)


RULES: list[Rule] = []


def rule(*codes: str, each: Each = HOST) -> Callable[[J], J]:
    """Declare the function that looks for this finding, or for the same one of several paths."""

    def declare(judge: J) -> J:
        RULES.extend(Rule(code, each, judge) for code in codes)
        return judge

    return declare


def declare_rows(path: str) -> None:
    """Declare the rules of a path that are rows of the catalogue."""
    for code, row in catalogue.own_entries().items():
        if code.partition(".")[0] != path:
            continue
        if row.asks is not None:
            RULES.append(Rule(code, HOST, getattr(common, row.asks)))
        elif row.when is not None:
            RULES.append(Rule(code, Each[row.each.upper()], _InRow(code, row)))


class _InRow:
    """Judges by a row's condition, and says what its `observed` names of the facts."""

    def __init__(self, code: str, row: CatalogueEntry) -> None:
        self._row = row
        self.__name__ = code.partition(".")[2].replace("-", "_")

    def __call__(self, facts: HostFacts, subject: Any = None) -> str | None:
        states = _States(facts, subject)
        found = evaluate(self._row.when or {}, states.ask)
        if found.holds is None:
            raise next(iter(found.unknown.values()))
        return self._row.observed.format_map(states) if found.holds else None


class _States(dict[str, Any]):
    """States as rows ask for them: `OperatingSystem.named` of the host, `gpu.problem` and `vm.name` of the subject."""

    def __init__(self, facts: HostFacts, subject: Any) -> None:
        super().__init__()
        self._facts = facts
        if isinstance(subject, Card):
            self["gpu"] = subject.gpu.state
        elif subject is not None:
            self["vm"] = subject.state

    def ask(self, question: str) -> tuple[Any, ...]:
        """The answers to a question. Raises MissingFact."""
        name, _, attribute = question.partition(".")
        return (getattr(self[name], attribute),) if name in self else self._facts.ask(question)

    def __missing__(self, resource: str) -> Any:
        return self._facts.the(RESOURCE_TYPES[resource].state)


def reasons(variant: str, each: Each, subject: str, *seen: Any) -> tuple[Reason, ...]:
    """The findings of a variant's rules about one subject, each observation once. `seen`: the rules' arguments."""
    heaviest: dict[tuple[str, str], Finding] = {}
    for finding in _findings(variant, each, seen):
        known = heaviest.setdefault((finding.code, finding.observed), finding)
        if finding.severity.rank > known.severity.rank:
            heaviest[finding.code, finding.observed] = finding
    return tuple(reason_of(finding, subject) for finding in heaviest.values())


def _findings(variant: str, each: Each, seen: tuple[Any, ...]) -> Iterable[Finding]:
    """For a variant: the findings of its path, and its own. Raises LookupError without rules of the path: nothing would
    speak against it.
    """
    path = path_of(variant)
    if not _rules(path, HOST):
        raise LookupError(f"no rules of {path} are imported")
    facts, *subject = seen
    found: list[Finding] = []
    for topic in dict.fromkeys((path, variant)):
        key = (topic, each, *map(_key, subject))
        if key not in facts.kept:
            facts.kept[key] = tuple([one for each_rule in _rules(topic, each) if (one := _judged(each_rule, seen))])
        found += facts.kept[key]
    return found


def _key(subject: Any) -> object:
    """A GPU by its location, a VM by its key, a selection by both; each is a value of these facts."""
    if hasattr(subject, "cards"):
        return (*(card.location for card in subject.cards), subject.vm and subject.vm.key["vm"])
    return subject.location if hasattr(subject, "location") else subject.key["vm"]


def asks(variant: str, each: Each) -> bool:
    """Whether a variant has rules about this kind of subject."""
    return bool(_rules(path_of(variant), each) or _rules(variant, each))


@once
def _rules(topic: str, each: Each) -> tuple[Rule, ...]:
    """In the order of the catalogue."""
    mine = [rule for rule in RULES if rule.path == path_of(topic) and rule.each is each and topic in rule.topics]
    return tuple(sorted(mine, key=lambda rule: _order()[rule.code]))


@once
def _order() -> Mapping[str, int]:
    return {code: place for place, code in enumerate(catalogue.own_entries())}


def gap(variant: str, subject: str, missing: MissingFact) -> Reason:
    """The reason where a whole resource could not be read, so no rule can be asked."""
    return reason_of(finding_of_gap(path_of(variant), BLOCKS, missing), subject)


def _judged(rule: Rule, seen: tuple[Any, ...]) -> Finding | None:
    try:
        found = rule.judge(*seen)
    except MissingFact as missing:
        return finding_of_gap(rule.path, rule.unknown, missing)
    return finding(rule.code, found) if isinstance(found, str) else found


def finding(code: str, observed: str) -> Finding:
    """With the severity that the catalogue has for it."""
    severity = catalogue.entry(code).severity
    assert severity is not None, f"{code} has no severity of its own"
    return Finding(code, severity, observed)


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
