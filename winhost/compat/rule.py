"""Rules over facts, and their runner, which evaluates each rule once per set of facts and subject. Facts that were not
read are unknown.

A rule is a row of the catalogue: its code, severity, sentence, remedy and evidence, the variants that it applies to,
and either a condition (`when`) or a judge (`asks`): a function that returns what it observed. Judges that several paths
share are in compat/common.py, the others in the module of their topic. The facts keep the outcome of each rule,
together with which facts it read.
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
from winhost.compat.common import SubjectAnswers, gpu_answers, gpu_answers_reader, instance_reader, instances
from winhost.compat.target import Target, Versions, gpu_reader, name_gpus, target_reader
from winhost.core.answers import MissingFact, Unavailable
from winhost.core.dataclass import dataclass
from winhost.findings.condition import UNDECIDED, Predicate, Reader, format_sentence
from winhost.knowledge import catalogue
from winhost.knowledge.catalogue import CatalogueEntry
from winhost.knowledge.versions import UncheckedVersion, find_unchecked_version
from winhost.model.capabilities import CAPABILITIES
from winhost.model.once import once
from winhost.model.path import EVERY_PATH, path_of
from winhost.model.reason import Finding, Severity
from winhost.resources.host import HostFacts
from winhost.resources.registry import RESOURCE_TYPES, title_of
from winhost.resources.windows.pci_device import PciDevice
from winhost.resources.windows.read_only import Vm


class SubjectKind(Enum):
    """The subject of a rule: the host, one GPU, one VM, GPUs and a VM together, the Linux that would serve, or a
    workload on a variant.
    """

    HOST = "host"
    GPU = "gpu"
    VM = "vm"
    ASSIGNMENT = "assignment"
    TARGET = "target"
    WORKLOAD = "workload"


# Remedies for versions that only the user can state: they may as well choose the newest.
STATING_REMEDIES = {"the version of vllm": "newer-vllm", "the version of toolkit": "newer-toolkit"}

# Remedies for versions that are older than all evidence.
UPGRADE_REMEDIES = {"vllm": "newer-vllm", "toolkit": "newer-toolkit", "wsl": "update-wsl"}

HOST, GPU, VM, ASSIGNMENT, TARGET, WORKLOAD = SubjectKind

# The facts that a judge receives with its subject, and does not read itself.
SUBJECT_FACTS = {GPU: (PciDevice,), VM: (Vm,), ASSIGNMENT: (PciDevice, Vm)}


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
    """Make a finding from an observation and the catalogue's entry. severity, remedy: replace those of the entry;
    subject: the runner adds it to findings of rules. Cached, because hosts share most findings, and identical objects
    are quick to compare. Raises UsageError: UnknownCode.
    """
    entry = catalogue.entry(code)
    severity = severity or entry.severity
    assert severity is not None, f"{code} has no severity of its own"
    return Finding(
        code=code,
        severity=severity,
        subject=subject,
        observed=observed,
        sentence=entry.sentence,
        remedy=catalogue.remedy(remedy or entry.remedy),
        evidence=entry.evidence,
        risks=entry.risks,
        lacks=lacks,
    )


# Returns what was observed; None where the finding does not apply. A judge with several codes or severities returns the
# finding itself.
Judge: TypeAlias = Callable[..., str | Finding | None]
Outcome: TypeAlias = str | Finding | MissingFact | None

# The module with the judges of a topic, imported when the first of them is called.
_JUDGE_MODULES = {path: path for path in EVERY_PATH} | dict.fromkeys(CAPABILITIES, "capabilities.rules")
_JUDGE_MODULES |= {"gpu-p": "gpu_p", "wslc": "wsl2", "dual-boot": "ubuntu", "bare-metal": "ubuntu"}


@dataclass(frozen=True, eq=False)
class Rule:
    """A row with its judge. code: the first code, where the judge has several. The judge takes the facts, and the
    subject unless that is the host.
    """

    code: str
    row: CatalogueEntry

    @cached_property
    def topic(self) -> str:
        """The path or capability that its code names."""
        return self.code.partition(".")[0]

    @cached_property
    def subject_kind(self) -> SubjectKind:
        kind = SubjectKind(self.row.each)
        return TARGET if kind is HOST and self.topic in CAPABILITIES else kind

    @cached_property
    def judge(self) -> Judge:
        row = self.row
        if row.asks is None:
            content = repr((self.subject_kind, row.when, row.which, row.none, row.among, row.named, row.observed))
            content += self.code if row.some else ""
            if content not in _ROW_JUDGES:  # paths with equal rows share a judge, which is then evaluated once
                _ROW_JUDGES[content] = _compile_row(row, self.subject_kind, self.code)
            return _ROW_JUDGES[content]
        name = "workload_rules" if self.subject_kind is WORKLOAD else _JUDGE_MODULES[self.topic]
        module = import_module(f"{__package__}.{name}")
        judge: Judge = getattr(module, row.asks, None) or getattr(common, row.asks)
        return _guard_judge(row, self.subject_kind, judge) if row.when else judge

    def applies_to(self, variant: str) -> bool:
        return not self.row.only or variant in self.row.only or path_of(variant) in self.row.only

    def to_finding(self, outcome: Outcome, topic: str) -> Finding | None:
        """Turn the outcome of the judge into a finding about a path or capability."""
        if isinstance(outcome, str):
            return finding(self.code, outcome)
        if not isinstance(outcome, MissingFact):
            return outcome
        severity = UNDECIDED[self.row.unknown]
        return gap(topic, severity, outcome) if severity else None


@once
def rules() -> tuple[Rule, ...]:
    """Return all rules in the order of the catalogue."""
    return tuple(Rule(code, row) for code, row in catalogue.reason_entries().items() if row.asks or row.observed)


@once
def rules_of(topic: str, variant: str, kind: SubjectKind) -> tuple[Rule, ...]:
    """Return the rules of a path or capability that apply to a variant and have this kind of subject."""
    of_topic = [rule for rule in rules() if rule.subject_kind is kind and topic in (rule.topic, *rule.row.also)]
    return tuple(rule for rule in of_topic if rule.applies_to(variant))


_READERS: Mapping[SubjectKind, Callable[[str], Reader]] = {
    TARGET: target_reader,
    WORKLOAD: lambda question: lambda case, _: (case[question],),
}


def _compile_when(row: CatalogueEntry, kind: SubjectKind) -> Predicate:
    return row.when.compile(_READERS.get(kind) or common.READERS[row.each])


def _guard_judge(row: CatalogueEntry, kind: SubjectKind, judge: Judge) -> Judge:
    """Return a judge that is called only where the row's condition holds."""
    holds = _compile_when(row, kind)

    def guarded(about: Any, *subject: Any) -> str | Finding | None:
        return judge(about, *subject) if holds(about, *(subject or (None,))) else None

    return guarded


def _compile_row(row: CatalogueEntry, kind: SubjectKind, code: str) -> Judge:
    """Compile a row into a judge: its condition, its choice, and the sentence of `observed`.

    The judge takes facts, with a GPU or VM as their subject; a target; or a workload on a variant.
    """
    holds, observed = _compile_when(row, kind), row.observed

    def answers(about: Any, subject: Any) -> Any:
        return about if kind in _READERS else SubjectAnswers(about, row.each, subject)

    def judge(about: Any, subject: Any = None) -> str | None:
        return format_sentence(observed, answers(about, subject)) if holds(about, subject) else None

    if row.which or row.among or row.none is not None:
        return _compile_row_with_choice(row, kind, code, holds, answers)
    return judge


def _compile_row_with_choice(
    row: CatalogueEntry, kind: SubjectKind, code: str, holds: Predicate, answers: Callable[[Any, Any], Any]
) -> Judge:
    list_items, choose = _compile_choice(row, kind)
    name = name_gpus if kind is TARGET and row.among not in RESOURCE_TYPES else row.name_all

    def judge(about: Any, subject: Any = None) -> str | Finding | None:
        """If either condition or choice fails, that decides, even if the other is unknown."""
        unknown = None
        try:
            if not holds(about, subject):
                return None
        except MissingFact as missing:
            unknown = missing
        items = list_items(about)
        chosen = choose(items)
        if chosen is None:
            return None
        if unknown:
            raise unknown
        observed = format_sentence(row.observed, _AnswersWithChosen(answers(about, subject), partial(name, chosen)))
        return finding(code, observed, row.some) if row.some and len(chosen) < len(items) else observed

    return judge


def _compile_choice(
    row: CatalogueEntry, kind: SubjectKind
) -> tuple[Callable[[Any], Sequence[Any]], Callable[..., Any]]:
    """Return a function that lists the items that a row chooses from, and its compiled choice."""
    if row.among in RESOURCE_TYPES:
        state = RESOURCE_TYPES[row.among].state
        return lambda about: instances(getattr(about, "facts", about), state), row.compile_choice(instance_reader)
    if kind is WORKLOAD:
        return lambda case: case.among(row.among), row.compile_choice(instance_reader)
    if kind is TARGET:
        return attrgetter("gpus"), row.compile_choice(gpu_reader)
    return gpu_answers, row.compile_choice(gpu_answers_reader)


_ROW_JUDGES: dict[str, Judge] = {}


class _AnswersWithChosen:
    """Answers for a sentence, in which `{which}` names what the row chose."""

    def __init__(self, answers: Any, name_chosen: Callable[[], str]) -> None:
        self._answers, self._name_chosen = answers, name_chosen

    def __getitem__(self, name: str) -> Any:
        return self._name_chosen() if name == "which" else self._answers[name]


@lru_cache(maxsize=8192)
def with_subject(found: Finding, subject: str) -> Finding:
    return replace(found, subject=subject)


# --- The runner ----------------------------------------------------------------------------------------------------


def find_reasons(variant: str, kind: SubjectKind, subject: str, facts: HostFacts, *about: Any) -> tuple[Finding, ...]:
    """Evaluate a variant's rules about one subject. Of equal observations the one with the highest severity is
    returned.
    """
    key = tuple([cache_key(subject) for subject in about])
    heaviest: dict[tuple[str, str], Finding] = {}
    for group in _groups(variant, kind):
        for found in facts.cached((group, key), _run_group, group, facts, key, about):
            known = heaviest.setdefault((found.code, found.observed), found)
            if found.severity.rank > known.severity.rank:
                heaviest[found.code, found.observed] = found
    if not heaviest:
        return ()
    host = Target(facts, variant).versions
    return tuple([with_subject(limit_to_evidence(found, host), subject) for found in heaviest.values()])


@dataclass(frozen=True, eq=False)
class _Group:
    """Rules that are evaluated together: those of a path, or those that only apply to one variant."""

    rules: tuple[Rule, ...]
    judges: tuple[Judge, ...]


@once
def _groups(variant: str, kind: SubjectKind) -> tuple[_Group, ...]:
    path = path_of(variant)
    if variant == path:
        rules = rules_of(path, path, kind)
        return (_Group(rules, tuple(rule.judge for rule in rules)),) if rules else ()
    own = [rule for rule in rules_of(path, variant, kind) if not rule.applies_to(path)]
    return (*_groups(path, kind), *([_Group(tuple(own), tuple(rule.judge for rule in own))] if own else []))


def _run_group(group: _Group, facts: HostFacts, key: tuple[object, ...], about: tuple[Any, ...]) -> tuple[Finding, ...]:
    given = SUBJECT_FACTS[group.rules[0].subject_kind] if about else ()
    outcomes = facts.outcomes(group.judges, facts, *about, key=key, given=given)
    judged = zip(group.rules, outcomes, strict=True)
    findings = [rule.to_finding(outcome, rule.topic) for rule, outcome in judged if outcome is not None]
    return tuple([each for each in findings if each])


def cache_key(subject: Any) -> object:
    """Return the cache key of a subject of these facts: a GPU's location, a VM's key, both for a selection."""
    if hasattr(subject, "gpus"):
        return (*(gpu.location for gpu in subject.gpus), subject.vm and subject.vm.key["vm"])
    return subject.location if hasattr(subject, "location") else subject.key["vm"]


def has_rules(variant: str, kind: SubjectKind) -> bool:
    """Tell whether a variant has rules about this kind of subject."""
    return bool(rules_of(path_of(variant), variant, kind))


# --- Missing facts, and versions that evidence does not cover ---------------------------------------------------------


def gap(topic: str, severity: Severity, missing: MissingFact, subject: str = "") -> Finding:
    """Make the finding of a missing fact for a path or capability."""
    if isinstance(missing.missing, Unavailable):
        observed = f"{title_of(missing.missing.unavailable)} has to be set up first"
        return finding(f"{topic}.later", observed, Severity.NOTE, subject)
    return _unread_fact(topic, missing.sentence, severity, subject, missing.fact)


@lru_cache(maxsize=4096)
def _unread_fact(topic: str, observed: str, severity: Severity, subject: str, fact: str) -> Finding:
    return finding(f"{topic}.unknown", observed, severity, subject, remedy=STATING_REMEDIES.get(fact), lacks=fact)


def limit_to_evidence(found: Finding, host: Versions) -> Finding:
    """Return the finding; as unverified if it is unsupported or degraded and its evidence does not cover a version of
    the host. A version that could not be read leaves an unsupported finding as it is.
    """
    decides = found.severity in (Severity.UNSUPPORTED, Severity.DEGRADED)
    if not decides or found.lacks or found.measured_here:
        return found
    unchecked = _unchecked_version(found.code, host)
    if unchecked is None or (unchecked.unread and found.severity is Severity.UNSUPPORTED):
        return found
    remedy = catalogue.remedy(UPGRADE_REMEDIES.get(unchecked.subject)) if unchecked.older else None
    observed = f"{found.observed}; {unchecked}"
    return replace(found, severity=Severity.UNVERIFIED, observed=observed, remedy=remedy or found.remedy)


@lru_cache(maxsize=4096)
def _unchecked_version(code: str, host: Versions) -> UncheckedVersion | None:
    """Return the first version of a host that the evidence of a reason does not cover."""
    entry = catalogue.entry(code)
    return find_unchecked_version(catalogue.evidence_of(entry.evidence), parse_versions(host), entry.older)


def parse_versions(host: Versions) -> Mapping[str, Version | None]:
    """Parse the versions of a host so that they can be compared."""
    return {name: Version(text) if text else None for name, text in host}
