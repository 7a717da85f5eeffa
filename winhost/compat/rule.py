"""Rules over facts, and their one runner: each once for a set of facts and a subject, what was not read as unknown.

A rule is a row of the catalogue: its code, severity, sentence, remedy and evidence, the variants that it is about, and
its condition: `when`, or `asks` for a judge, a function that says what it observed. Judges stand in compat/common.py
where several paths share them, else in the module of their topic. The facts keep the answer of each rule with what it
read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import cached_property, lru_cache, partial
from importlib import import_module
from operator import attrgetter
from typing import Any, TypeAlias

from packaging.version import Version

from winhost.compat import common
from winhost.compat.common import Asked, asked_gpus, instances, reading_asked_gpu, reading_one
from winhost.compat.target import Target, Versions, named, reading_gpu, reading_target
from winhost.core.answers import MissingFact, Unavailable
from winhost.core.dataclass import dataclass
from winhost.findings.condition import UNDECIDED, Predicate, Reader, say
from winhost.knowledge import catalogue
from winhost.knowledge.catalogue import CatalogueEntry
from winhost.knowledge.versions import OutOfReach, beyond
from winhost.model.capabilities import CAPABILITIES
from winhost.model.once import once
from winhost.model.path import EVERY_PATH, path_of
from winhost.model.reason import Finding, Severity
from winhost.resources.host import HostFacts
from winhost.resources.registry import RESOURCE_TYPES, title_of
from winhost.resources.windows.pci_device import PciDevice
from winhost.resources.windows.read_only import Vm


class Each(Enum):
    """The argument of a rule besides the facts: one GPU, one VM, GPUs and VM together, the Linux that would serve, or a
    workload on a variant.
    """

    HOST = "host"
    GPU = "gpu"
    VM = "vm"
    ASSIGNMENT = "assignment"
    TARGET = "target"
    WORKLOAD = "workload"


# What nobody but the user can tell, and who tells it may well take the newest.
STATING = {"the version of vllm": "newer-vllm", "the version of toolkit": "newer-toolkit"}

# What brings a version that is older than all evidence to one that is not.
NEWER = {"vllm": "newer-vllm", "toolkit": "newer-toolkit", "wsl": "update-wsl"}

HOST, GPU, VM, ASSIGNMENT, TARGET, WORKLOAD = Each

# The facts that judges get with their subject.
GIVEN = {GPU: (PciDevice,), VM: (Vm,), ASSIGNMENT: (PciDevice, Vm)}


@lru_cache(maxsize=8192)
def finding(
    code: str,
    observed: str,
    severity: Severity | None = None,
    subject: str = "",
    *,
    remedy: str | None = None,
    lacks: str | None = None,
) -> Finding:
    """Make a finding from an observation and the catalogue's entry. severity, remedy: instead of the entry's own; the
    runner names the subject of what a rule found. Kept: hosts have most findings in common, and what is the same object
    is compared at once. Raises UsageError: UnknownCode.
    """
    entry = catalogue.entry(code)
    weight = severity or entry.severity
    assert weight is not None, f"{code} has no severity of its own"
    return Finding(
        code=code,
        severity=weight,
        subject=subject,
        observed=observed,
        sentence=entry.sentence,
        remedy=catalogue.remedy(remedy or entry.remedy),
        evidence=entry.evidence,
        risks=entry.risks,
        lacks=lacks,
    )


# What was observed, where the finding applies. A rule with several codes or severities returns the finding itself.
Judge: TypeAlias = Callable[..., str | Finding | None]
Outcome: TypeAlias = str | Finding | MissingFact | None

# Where the judges of a topic are that no other shares. Imported when the first of them is asked.
_JUDGES = {path: path for path in EVERY_PATH} | dict.fromkeys(CAPABILITIES, "capabilities.rules")
_JUDGES |= {"gpu-p": "gpu_p", "wslc": "wsl2", "dual-boot": "ubuntu", "bare-metal": "ubuntu"}


@dataclass(frozen=True, eq=False)
class Rule:
    """A row that can be judged. code: of the first finding, where it has several. The judge takes the facts, and the
    subject unless that is the host.
    """

    code: str
    row: CatalogueEntry

    @cached_property
    def topic(self) -> str:
        """The path or capability that its code names."""
        return self.code.partition(".")[0]

    @cached_property
    def each(self) -> Each:
        each = Each(self.row.each)
        return TARGET if each is HOST and self.topic in CAPABILITIES else each

    @cached_property
    def judge(self) -> Judge:
        row = self.row
        if row.asks is None:
            says = repr((self.each, row.when, row.which, row.none, row.among, row.named, row.observed))
            says += self.code if row.some else ""
            if says not in _IN_ROWS:  # rows of several paths that say the same are answered once
                _IN_ROWS[says] = _judge_of_row(row, self.each, self.code)
            return _IN_ROWS[says]
        own = "workload_rules" if self.each is WORKLOAD else _JUDGES[self.topic]
        judges = import_module(f"{__package__}.{own}")
        found: Judge = getattr(judges, row.asks, None) or getattr(common, row.asks)
        return _where_it_holds(row, self.each, found) if row.when else found

    def is_about(self, variant: str) -> bool:
        return not self.row.only or variant in self.row.only or path_of(variant) in self.row.only

    def found(self, outcome: Outcome, topic: str) -> Finding | None:
        """The finding about a path or capability that follows from what the rule saw."""
        if isinstance(outcome, str):
            return finding(self.code, outcome)
        if not isinstance(outcome, MissingFact):
            return outcome
        severity = UNDECIDED[self.row.unknown]
        return gap(topic, severity, outcome) if severity else None


@once
def rules() -> tuple[Rule, ...]:
    """All, in the order of the catalogue."""
    return tuple(Rule(code, row) for code, row in catalogue.own_entries().items() if row.asks or row.observed)


@once
def rules_of(topic: str, variant: str, each: Each) -> tuple[Rule, ...]:
    """The rules about a path or capability that apply to a variant. For a path, those that are about its variants in
    particular apply to these alone.
    """
    mine = [rule for rule in rules() if rule.each is each and topic in (rule.topic, *rule.row.also)]
    return tuple(rule for rule in mine if rule.is_about(variant))


_READERS: Mapping[Each, Callable[[str], Reader]] = {
    TARGET: reading_target,
    WORKLOAD: lambda question: lambda case, _: (case[question],),
}


def _holds(row: CatalogueEntry, each: Each) -> Predicate:
    return row.when.by(_READERS.get(each) or common.READING[row.each])


def _where_it_holds(row: CatalogueEntry, each: Each, judge: Judge) -> Judge:
    """Ask a judge only where the row's condition holds."""
    holds = _holds(row, each)

    def asked(about: Any, *subject: Any) -> str | Finding | None:
        return judge(about, *subject) if holds(about, *(subject or (None,))) else None

    return asked


def _judge_of_row(row: CatalogueEntry, each: Each, code: str) -> Judge:
    """Compile a row into a judge: its condition and choice, and what its `observed` names of the facts.

    The judge takes facts, with a GPU or VM as their subject; a target; or a workload on a variant.
    """
    holds, observed, kind = _holds(row, each), row.observed, row.each

    def asked(about: Any, subject: Any) -> Any:
        return about if each in _READERS else Asked(about, kind, subject)

    def judge(about: Any, subject: Any = None) -> str | None:
        return say(observed, asked(about, subject)) if holds(about, subject) else None

    if row.which or row.among or row.none is not None:
        return _judge_of_choice(row, each, code, holds, asked)
    return judge


def _judge_of_choice(
    row: CatalogueEntry, each: Each, code: str, holds: Predicate, asked: Callable[[Any, Any], Any]
) -> Judge:
    ones, choose = _choice(row, each)
    name = named if each is TARGET and row.among not in RESOURCE_TYPES else row.name_all

    def judge(about: Any, subject: Any = None) -> str | Finding | None:
        """Either of condition and choice that fails decides, even if the other is unknown."""
        unknown = None
        try:
            if not holds(about, subject):
                return None
        except MissingFact as missing:
            unknown = missing
        every = ones(about)
        chosen = choose(every)
        if chosen is None:
            return None
        if unknown:
            raise unknown
        said = say(row.observed, _WithChosen(asked(about, subject), partial(name, chosen)))
        return finding(code, said, row.some) if row.some and len(chosen) < len(every) else said

    return judge


def _choice(row: CatalogueEntry, each: Each) -> tuple[Callable[[Any], Sequence[Any]], Callable[..., Any]]:
    """Return what a row chooses from, and its choice."""
    if row.among in RESOURCE_TYPES:
        state = RESOURCE_TYPES[row.among].state
        return lambda about: instances(getattr(about, "facts", about), state), row.choice(reading_one)
    if each is WORKLOAD:
        return lambda case: case.among(row.among), row.choice(reading_one)
    if each is TARGET:
        return attrgetter("gpus"), row.choice(reading_gpu)
    return asked_gpus, row.choice(reading_asked_gpu)


_IN_ROWS: dict[str, Judge] = {}


class _WithChosen:
    """Lets sentences name what a row chose."""

    def __init__(self, others: Any, chosen: Callable[[], str]) -> None:
        self._others, self._chosen = others, chosen

    def __getitem__(self, name: str) -> Any:
        return self._chosen() if name == "which" else self._others[name]


@lru_cache(maxsize=8192)
def about_subject(found: Finding, subject: str) -> Finding:
    return replace(found, subject=subject)


# --- The runner ----------------------------------------------------------------------------------------------------


def reasons(variant: str, each: Each, subject: str, facts: HostFacts, *about: Any) -> tuple[Finding, ...]:
    """The findings of a variant's rules about one subject, each observation once."""
    key = tuple([key_of(subject) for subject in about])
    heaviest: dict[tuple[str, str], Finding] = {}
    for group in _groups(variant, each):
        for found in facts.cached((group, key), _found_by, group, facts, key, about):
            known = heaviest.setdefault((found.code, found.observed), found)
            if found.severity.rank > known.severity.rank:
                heaviest[found.code, found.observed] = found
    if not heaviest:
        return ()
    host = Target(facts, variant).versions
    return tuple([about_subject(within_reach(found, host), subject) for found in heaviest.values()])


@dataclass(frozen=True, eq=False)
class _Group:
    """Rules that are asked together: those of a path, or those of one variant alone."""

    rules: tuple[Rule, ...]
    judges: tuple[Judge, ...]


@once
def _groups(variant: str, each: Each) -> tuple[_Group, ...]:
    path = path_of(variant)
    if variant == path:
        rules = rules_of(path, path, each)
        return (_Group(rules, tuple(rule.judge for rule in rules)),) if rules else ()
    own = [rule for rule in rules_of(path, variant, each) if not rule.is_about(path)]
    return (*_groups(path, each), *([_Group(tuple(own), tuple(rule.judge for rule in own))] if own else []))


def _found_by(group: _Group, facts: HostFacts, key: tuple[object, ...], about: tuple[Any, ...]) -> tuple[Finding, ...]:
    given = GIVEN[group.rules[0].each] if about else ()
    outcomes = facts.outcomes(group.judges, facts, *about, key=key, given=given)
    seen = zip(group.rules, outcomes, strict=True)
    found = [rule.found(outcome, rule.topic) for rule, outcome in seen if outcome is not None]
    return tuple([each for each in found if each])


def key_of(subject: Any) -> object:
    """A GPU by its location, a VM by its key, a selection by both; each is a value of these facts."""
    if hasattr(subject, "gpus"):
        return (*(gpu.location for gpu in subject.gpus), subject.vm and subject.vm.key["vm"])
    return subject.location if hasattr(subject, "location") else subject.key["vm"]


def asks(variant: str, each: Each) -> bool:
    """Tell whether a variant has rules about this kind of subject."""
    return bool(rules_of(path_of(variant), variant, each))


# --- What could not be read, and what evidence does not reach --------------------------------------------------------


def gap(topic: str, severity: Severity, missing: MissingFact, subject: str = "") -> Finding:
    """The finding of a missing fact for a path or capability."""
    if isinstance(missing.missing, Unavailable):
        observed = f"{title_of(missing.missing.unavailable)} has to be set up first"
        return finding(f"{topic}.later", observed, Severity.NOTE, subject)
    return _unread(topic, missing.said, severity, subject, missing.fact)


@lru_cache(maxsize=4096)
def _unread(topic: str, observed: str, severity: Severity, subject: str, fact: str) -> Finding:
    return finding(f"{topic}.unknown", observed, severity, subject, remedy=STATING.get(fact), lacks=fact)


def within_reach(found: Finding, host: Versions) -> Finding:
    """The finding; unverified where it would decide and its evidence holds for other versions than the host's. A
    version that could not be read makes nothing better than what is known of all others.
    """
    decides = found.severity in (Severity.UNSUPPORTED, Severity.DEGRADED)
    if not decides or found.lacks or found.measured_here:
        return found
    short = _out_of_reach(found.code, host)
    if short is None or (short.unread and found.severity is Severity.UNSUPPORTED):
        return found
    remedy = catalogue.remedy(NEWER.get(short.subject)) if short.older else None
    observed = f"{found.observed}; {short}"
    return replace(found, severity=Severity.UNVERIFIED, observed=observed, remedy=remedy or found.remedy)


@lru_cache(maxsize=4096)
def _out_of_reach(code: str, host: Versions) -> OutOfReach | None:
    """The first version of a host for which the evidence of a reason does not hold."""
    entry = catalogue.entry(code)
    return beyond(catalogue.evidence_of(entry.evidence), parsed(host), entry.older)


def parsed(host: Versions) -> Mapping[str, Version | None]:
    """Versions of a host, to be compared."""
    return {name: Version(text) if text else None for name, text in host}
