"""Findings, the verdicts that follow from them, and the evidence for each."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Literal

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.model.path import OPT_IN_VARIANTS, AvailableMemory

Mender = Literal["winhost", "admin", "firmware", "money"]
Kind = Literal["vendor-doc", "source", "issue", "measured", "inferred"]
Confidence = Literal["high", "medium", "low"]

HOST = "host"
PLAN = "plan"  # the subject of findings for which a default plan is refused


class Category(StrEnum):
    """The category in which a linter counts a finding. A defect prevents a start, makes something differ from what is
    written, or exposes or destroys something. Everything else is advice.
    """

    DEFECT = "defect"
    ADVICE = "advice"


class Severity(StrEnum):
    """The severity of a finding, the lowest first. A note changes no verdict. dangerous: it works, and exposes, loses
    or destroys something.
    """

    rank: int  # more severe is higher

    NOTE = "note"
    DEGRADED = "degraded"
    UNVERIFIED = "unverified"
    UNSUPPORTED = "unsupported"
    DANGEROUS = "dangerous"

    @property
    def category(self) -> Category:
        """The category in which linters count the finding."""
        return Category.ADVICE if self in (Severity.NOTE, Severity.UNVERIFIED) else Category.DEFECT

    @property
    def file_label(self) -> str:
        """The label of the severity in front of a position in a file."""
        return _FILE_LABELS.get(self, self.value)


class Verdict(StrEnum):
    """The verdict on a path, best first."""

    rank: int  # worse is higher; equal to that of the severity that leads to it

    SUPPORTED = "supported"
    DEGRADED = "degraded"
    UNVERIFIED = "unverified"
    UNSUPPORTED = "unsupported"

    @classmethod
    def of(cls, reasons: Iterable["Finding"]) -> "Verdict":
        """Return the verdict that follows from reasons: that of the worst; supported where there are only notes."""
        return _VERDICTS_BY_RANK[
            min(max((reason.severity.rank for reason in reasons), default=0), len(_VERDICTS_BY_RANK) - 1)
        ]

    def because(self, reasons: Iterable["Finding"]) -> tuple[str, ...]:
        """Return the codes of the reasons that lead to the verdict, each once; none where it is supported."""
        if self is Verdict.SUPPORTED:
            return ()
        return tuple(dict.fromkeys(reason.code for reason in reasons if reason.severity.rank == self.rank))

    @classmethod
    def worst(cls, verdicts: Iterable["Verdict"]) -> "Verdict":
        """Return the worst verdict; supported where there are none."""
        return max(verdicts, key=lambda verdict: verdict.rank, default=cls.SUPPORTED)

    @classmethod
    def best(cls, verdicts: Iterable["Verdict"]) -> "Verdict":
        """Return the best verdict; supported where there are none."""
        return min(verdicts, key=lambda verdict: verdict.rank, default=cls.SUPPORTED)


for _rank, _severity in enumerate(Severity):
    _severity.rank = _rank
for _rank, _verdict in enumerate(Verdict):
    _verdict.rank = _rank
_VERDICTS_BY_RANK = tuple(Verdict)
_UNQUOTED_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # a word that no shell quotes
_FILE_LABELS = {Severity.DEGRADED: "ignored", Severity.UNSUPPORTED: "wrong"}


@dataclass(frozen=True)
class Remedy:
    """The remedy of a finding. id: in the catalogue of remedies, None for a remedy that only this finding has; who: who
    applies it; unverified: it is inferred, and no report confirms that it helps.
    """

    id: str | None
    do: str
    who: Mender = "admin"
    unverified: bool = False


@dataclass(frozen=True)
class Finding:
    """The finding of a rule about a host, a workload, a file or a text. Its JSON has the same fields. It does not name
    the host, file or text, because all findings of an answer share it.

    subject: `host`, the name of a GPU or VM, a selection of them, or `plan`, where a default plan would be refused;
    subclasses describe theirs. observed: what was seen, in numbers and names; sentence: why it matters, for people;
    remedy: None where none is known, or where the sentence says it; evidence: ids; risks: consents that it requires;
    lacks: the fact that could not be read, such as `PciDevice.acs`, if there is one; stated: the facts that it depends
    on and that a user stated.
    """

    code: str
    severity: Severity = field(hash=False)  # code, observation and subject are enough for the hash
    subject: str
    observed: str
    sentence: str = field(hash=False)
    remedy: Remedy | None = field(hash=False)
    evidence: tuple[str, ...] = field(hash=False)
    risks: tuple[str, ...] = field(default=(), hash=False)
    lacks: str | None = field(default=None, hash=False)
    stated: tuple[str, ...] = field(default=(), hash=False)

    @property
    def measured_here(self) -> bool:
        """True if `winhost probe` measured it on this host, so that version ranges of evidence do not apply."""
        fact = self.code.partition(".")[2]
        return fact.startswith("measured") and fact != "measured-before"  # that one is about another driver


@dataclass(frozen=True)
class SubjectVerdict:
    """The verdict on one GPU or VM. `key`: its location path or GUID; `name` is for people."""

    kind: Literal["gpu", "vm"]
    key: str
    name: str
    verdict: Verdict
    reasons: tuple[Finding, ...]


@dataclass(frozen=True)
class CapabilityVerdict:
    """The verdict on one capability of a target.

    because: the codes that decide the verdict, none where it is supported; grounds: ids of evidence that it works where
    no reason speaks against it; measure: its amount or kind, for people; stated: the facts that the verdict depends on
    and that a user stated.
    """

    capability: str
    verdict: Verdict
    because: tuple[str, ...]
    reasons: tuple[Finding, ...]
    grounds: tuple[str, ...]
    measure: str | None = None
    stated: tuple[str, ...] = ()


@dataclass(frozen=True)
class PathVerdict:
    """The verdict on one path, or on one of its variants (`wsl2/bridged`).

    reasons: those of the host, and of the selection as a whole; because: the codes that decide the verdict, each once,
    none where it is supported; gpus, vms: the best of them decide, or all where they were selected; grounds: ids of
    evidence that it works where no reason speaks against it; variants: the best of them decides; available_memory: what
    the path provides, where that is known; stated: the facts that the verdict depends on and that a user stated.
    """

    path: str
    verdict: Verdict
    because: tuple[str, ...]
    reasons: tuple[Finding, ...]
    gpus: tuple[SubjectVerdict, ...]
    vms: tuple[SubjectVerdict, ...]
    grounds: tuple[str, ...] = ()
    variants: tuple["PathVerdict", ...] = ()
    capabilities: Sequence[CapabilityVerdict] = ()
    available_memory: AvailableMemory | None = None
    stated: tuple[str, ...] = ()

    @property
    def path_and_options(self) -> tuple[str, ...]:
        """The arguments after `winhost plan --path` that choose this path, and the best VM where there are several.

        A VM is named by its id if a shell would need quotes around its name.
        """
        vm_option: tuple[str, ...] = ()
        if len(self.vms) > 1:
            best = min(self.vms, key=lambda vm: vm.verdict.rank)
            is_unique = sum(vm.name == best.name for vm in self.vms) == 1
            vm_option = ("--vm", best.name if is_unique and _UNQUOTED_WORD.fullmatch(best.name) else best.key)
        return (self.path, *vm_option, *OPT_IN_VARIANTS.get(self.path, ()))

    @property
    def every_variant(self) -> tuple["PathVerdict", ...]:
        """The variants, or the path itself where it has none."""
        return self.variants or (self,)

    def offers(self, capability: str) -> CapabilityVerdict:
        """Return the verdict on a capability. Raises KeyError where there is no such capability."""
        return {offered.capability: offered for offered in self.capabilities}[capability]

    @property
    def every_reason(self) -> tuple[Finding, ...]:
        """The reasons of the host, then of each GPU and VM."""
        return (*self.reasons, *(reason for subject in (*self.gpus, *self.vms) for reason in subject.reasons))


@dataclass(frozen=True)
class Assessment:
    """The verdicts on all paths of a host, in the order in which equally good ones are preferred. recommended: the name
    of a path; None where none works or the Windows version is not known; stated: facts that a user stated because they
    were not read.
    """

    host: str
    origin: str
    paths: tuple[PathVerdict, ...]
    recommended: str | None
    stated: tuple[str, ...] = ()

    def path(self, name: str) -> PathVerdict:
        """Return the verdict on a path. Raises KeyError where there is no such path."""
        return {path.path: path for path in self.paths}[name]

    @property
    def every_variant(self) -> tuple[PathVerdict, ...]:
        """The variants of each path, or the path itself where it has none."""
        return tuple(variant for path in self.paths for variant in path.every_variant)


@dataclass(frozen=True)
class KnownRemedy(Remedy):
    """A remedy of the catalogue. effect: what it changes in facts, by resource; stated: the versions that the host has
    afterwards, by name as in VERSIONS. A remedy that facts do not show has neither.
    """

    id: str
    effect: Mapping[str, Json] = field(default_factory=dict)
    stated: Mapping[str, str] = field(default_factory=dict)

    @property
    def can_be_judged(self) -> bool:
        """Tell whether it changes anything that verdicts depend on."""
        return bool(self.effect or self.stated)


@dataclass(frozen=True)
class Evidence:
    """A claim that anybody can check. holds: the versions for which it holds; confidence: mostly follows from the kind;
    seen: when the source was read; settles: what would settle the claim, if it is open.
    """

    id: str
    claim: str
    kind: Kind
    source: str
    seen: str
    holds: str
    confidence: Confidence
    settles: str | None = None


@dataclass(frozen=True)
class Explanation:
    """The explanation of a code. related: similar codes, the most similar first; says: messages of the programs that
    fail for this reason, as their logs have them.
    """

    code: str
    sentence: str
    means: str
    risks: tuple[str, ...]
    remedy: Remedy | None
    evidence: tuple[Evidence, ...]
    related: tuple[str, ...]
    says: tuple[str, ...] = ()


class Refusal(Exception):
    """A request that no plan can fulfil.

    code: of the catalogue; sentence, remedy: with the numbers and names of this host.
    """

    def __init__(self, code: str, sentence: str, remedy: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
        self.remedy = remedy


@dataclass(frozen=True)
class Caution:
    """A consequence of a request that users should know before they apply the plan; fields as in Refusal."""

    code: str
    severity: Severity
    sentence: str
