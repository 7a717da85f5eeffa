"""Reasons, the verdicts that follow from them, and the evidence behind each."""

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
PLAN = "plan"  # the subject of findings for which a plan is refused if nothing is chosen in it


class Category(StrEnum):
    """The category in which a linter counts a finding. A defect keeps the thing from starting, makes it other than
    written, exposes or destroys something. All else is advice.
    """

    DEFECT = "defect"
    ADVICE = "advice"


class Severity(StrEnum):
    """The weight of a finding, lightest first, whatever found it. A note changes no verdict. dangerous: it works, and
    opens, loses or destroys something.
    """

    rank: int  # heavier is higher

    NOTE = "note"
    DEGRADED = "degraded"
    UNVERIFIED = "unverified"
    UNSUPPORTED = "unsupported"
    DANGEROUS = "dangerous"

    @property
    def category(self) -> Category:
        """The category that linters count it in."""
        return Category.ADVICE if self in (Severity.NOTE, Severity.UNVERIFIED) else Category.DEFECT

    @property
    def file_label(self) -> str:
        """The word for it in front of a line of somebody's file."""
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
        """The worst of the reasons; supported where there are only notes."""
        return _VERDICTS_BY_RANK[
            min(max((reason.severity.rank for reason in reasons), default=0), len(_VERDICTS_BY_RANK) - 1)
        ]

    def because(self, reasons: Iterable["Finding"]) -> tuple[str, ...]:
        """The codes of the reasons that lead to it, each once; none where it is supported."""
        if self is Verdict.SUPPORTED:
            return ()
        return tuple(dict.fromkeys(reason.code for reason in reasons if reason.severity.rank == self.rank))

    @classmethod
    def worst(cls, verdicts: Iterable["Verdict"]) -> "Verdict":
        """The worst of them; supported where there are none."""
        return max(verdicts, key=lambda verdict: verdict.rank, default=cls.SUPPORTED)

    @classmethod
    def best(cls, verdicts: Iterable["Verdict"]) -> "Verdict":
        """The best of them; supported where there are none."""
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
    """The remedy of a finding. id: in the catalogue of remedies, None for words of a finding's own; unverified: it is
    inferred, and nobody has reported that it helps.
    """

    id: str | None
    do: str
    who: Mender = "admin"
    unverified: bool = False


@dataclass(frozen=True)
class Finding:
    """Something that one rule found on a host, for a workload, in a file or in a text. Its JSON has the same fields.
    The host, the file or the text stands beside it, because all findings of an answer share it.

    subject: `host`, a GPU's or VM's name, what is wanted together, or `plan`, where a plan in which nothing is chosen
    would be refused; subclasses name theirs. observed: what was seen, in numbers and names; sentence: why it matters,
    for people; remedy: None where none is known, or where the sentence says it; evidence: ids; risks: consents that it
    asks for; lacks: the fact that could not be read, as `PciDevice.acs`, if there is one; stated: facts that it depends
    on and that a user stated.
    """

    code: str
    severity: Severity = field(hash=False)  # code, observation and subject tell findings apart well enough
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
        """True if `winhost probe` measured it on this host, so that no version range of evidence limits it."""
        fact = self.code.partition(".")[2]
        return fact.startswith("measured") and fact != "measured-before"  # which is of another driver


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

    because: the codes that decide the verdict, none where it is supported; grounds: ids of evidence that it works,
    where no reason speaks against it; measure: how much of it there is, or which, for people; stated: facts that the
    verdict depends on and that a user stated.
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
    none where it is supported. Only the best subjects count, or all where they were selected. grounds: ids of evidence
    that it works, where no reason speaks against it; variants: the best of them counts; available_memory: what it
    provides, where that is known; stated: facts that the verdict depends on and that a user stated.
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
        """Return what follows `winhost plan --path` to choose it: the path, and the best VM where there are several.

        A VM whose name some shell would not take as it is goes by its id.
        """
        named: tuple[str, ...] = ()
        if len(self.vms) > 1:
            best = min(self.vms, key=lambda vm: vm.verdict.rank)
            alone = sum(vm.name == best.name for vm in self.vms) == 1
            named = ("--vm", best.name if alone and _UNQUOTED_WORD.fullmatch(best.name) else best.key)
        return (self.path, *named, *OPT_IN_VARIANTS.get(self.path, ()))

    @property
    def every_variant(self) -> tuple["PathVerdict", ...]:
        """Its variants, or itself where it has none."""
        return self.variants or (self,)

    def offers(self, capability: str) -> CapabilityVerdict:
        """Raises KeyError where there is no such capability."""
        return {offered.capability: offered for offered in self.capabilities}[capability]

    @property
    def every_reason(self) -> tuple[Finding, ...]:
        """The reasons of the host, then of each GPU and VM."""
        return (*self.reasons, *(reason for subject in (*self.gpus, *self.vms) for reason in subject.reasons))


@dataclass(frozen=True)
class Assessment:
    """All paths of one host, in the order in which equally good ones are preferred; `recommended` names one, if any:
    none where it is not known which Windows this is. stated: facts that a user stated because nobody read them.
    """

    host: str
    origin: str
    paths: tuple[PathVerdict, ...]
    recommended: str | None
    stated: tuple[str, ...] = ()

    def path(self, name: str) -> PathVerdict:
        """Raises KeyError where there is no such path."""
        found = {path.path: path for path in self.paths}
        return found[name]

    @property
    def every_variant(self) -> tuple[PathVerdict, ...]:
        """The variants of each path, or the path itself where it has none."""
        return tuple(variant for path in self.paths for variant in path.every_variant)


@dataclass(frozen=True)
class KnownRemedy(Remedy):
    """A remedy of the catalogue. effect: what it changes in facts, resource by resource; stated: the versions that are
    there after it, by name as in VERSIONS. Neither for a choice or an act that nothing shows.
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
    """A claim that a stranger can check. holds: for which versions; confidence: how sure it makes, mostly by its kind;
    settles: what would settle it, where it is open.
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
    """The explanation of a reason's code. related: codes of reasons about the same thing, the closest first; says:
    words of the programs that fail by it, as their logs have them.
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

    code: of the catalogue; sentence and remedy: with the numbers and names of this host.
    """

    def __init__(self, code: str, sentence: str, remedy: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
        self.remedy = remedy


@dataclass(frozen=True)
class Caution:
    """A consequence of a request that users should know before they apply the plan; fields as of Refusal."""

    code: str
    severity: Severity
    sentence: str
