"""The catalogue of reasons: the sentence, meaning, remedy and evidence of each code.

reasons/: by code, why it matters (sentence), what follows (means), the remedy, the evidence (none where the observation
is enough), the consents that it requires (risks), and the rule: severity and condition. evidence/: claims with sources
that anybody can check. gaps.yaml: the entries for missing facts and missing evidence, for every path and capability.
paths.yaml, capabilities/: what each is, and the evidence that it is supported (grounds).
"""

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from importlib.resources import files
from typing import Any, Literal

from winhost.core.dataclass import dataclass
from winhost.findings.catalogue import INLINE_EVIDENCE, Catalogue, parse_evidence, parse_row
from winhost.findings.condition import Condition, Reader, Undecided, format_sentence
from winhost.model.capabilities import CAPABILITIES
from winhost.model.errors import UsageError, did_you_mean, visible
from winhost.model.once import once
from winhost.model.path import EVERY_PATH, GROUPS, path_of
from winhost.model.reason import Evidence, Explanation, KnownRemedy, Remedy, Severity

ANY_TOPIC = "*"  # every path and capability

_FOLDER = files(__package__)


@dataclass(frozen=True)
class CatalogueEntry:
    """A row of the catalogue: the texts of a reason, and its rule.

    sentence: why it matters; means: what follows for the user; remedy, evidence: ids; risks: consents; case: for tests.

    severity: of the finding, None where the judge decides; some: the severity where `which` chose only some; unknown:
    what happens where a fact was not read; only: the paths and variants that the rule applies to, empty for all; also:
    further capabilities that it applies to; each: its subject; when: its condition; observed: the sentence about the
    facts; asks: the judge (a function of compat) that is called instead of `observed` where `when` holds; which: the
    condition that chooses GPUs; none: the condition that no GPU may meet; among: what to choose from instead of GPUs;
    named: how each chosen one is named; older: the subjects of versions.yaml whose version the rule finds too old, so
    that its evidence begins with a newer version (derived from `when` where possible).
    """

    sentence: str
    means: str
    remedy: str | None = None
    evidence: tuple[str, ...] = ()
    risks: tuple[str, ...] = ()
    severity: Severity | None = None
    some: Severity | None = None
    unknown: Undecided = "blocks"
    only: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    asks: str | None = None
    older: tuple[str, ...] = ()
    each: Literal["host", "gpu", "vm", "assignment", "workload"] = "host"
    when: Condition = field(default_factory=Condition)
    which: Condition = field(default_factory=Condition)
    none: Condition | None = None
    among: str = ""
    named: str = ""
    observed: str = ""
    case: Mapping[str, Any] = field(default_factory=dict)

    def compile_choice(self, reader_of: Callable[[str], Reader]) -> Callable[[Sequence[Any]], Sequence[Any] | None]:
        """Return a function that chooses among items: those that meet `which`, or all without it. It returns None where
        no item meets it, or where one meets `none`. It raises MissingFact. reader_of: returns the reader of a question.
        """
        is_forbidden = self.none.compile(reader_of) if self.none is not None else None
        is_chosen = self.which.compile(reader_of) if self.which else None

        def choose(items: Sequence[Any]) -> Sequence[Any] | None:
            if is_forbidden and any(map(is_forbidden, items)):
                return None
            chosen = list(filter(is_chosen, items)) if is_chosen else items
            return chosen if chosen or (is_forbidden and not is_chosen) else None

        return choose

    def name_all(self, items: Iterable[Any]) -> str:
        """Name the chosen items, each name once."""
        return ", ".join(dict.fromkeys(format_sentence(self.named or "{label}", item) for item in items))


@dataclass(frozen=True)
class Topic:
    """A path or a capability. title, means: for people; grounds: evidence ids, by path or variant; loses: trade-offs;
    asks: by variant, the setting that a plan must have to use it.
    """

    title: str
    means: str
    grounds: Mapping[str, tuple[str, ...]]
    loses: str | None = None
    asks: Mapping[str, str] = field(default_factory=dict)

    def grounds_for(self, variant: str) -> tuple[str, ...]:
        """Return the evidence that it works where no reason speaks against it: that of the variant, else of the
        path.
        """
        return self.grounds.get(variant, self.grounds.get(path_of(variant), ()))


def unknown_code_error(code: str, others: Iterable[str] = ()) -> UsageError:
    """Return the error for an unknown code. others: codes besides those of reasons that can be explained."""
    known = [*entries(), *others]
    longer = sum(each.startswith(f"{code}.") for each in known)
    what = f"no reason has the code '{visible(code)}'{did_you_mean(code, known)}"
    hint = "winhost assess shows the codes that apply to a host; winhost explain --list shows all of them"
    meaning = None
    if longer:
        what = f"'{visible(code)}' is no code, but the beginning of {longer} codes"
        meaning = "winhost explain takes a whole code, what another program printed when it failed, or a log file."
        topic = _TOPICS.get(code, code)
        option = "--path" if topic in EVERY_PATH else "--need" if topic in CAPABILITIES else None
        lead = f"Whether a host can do it, and why: winhost assess HOST {option} {topic}\n" if option else ""
        hint = f"{lead}All codes that begin with it: winhost explain --list {code}"
    return UsageError("UnknownCode", what=what, meaning=meaning, hint=hint)


_TOPICS = {"mmio": "dda", "wsl": "wsl2"}  # the path of codes that begin with another word


def entry(code: str) -> CatalogueEntry:
    """Return the entry of a code, or of a missing fact (`*.unknown`).

    Raises UsageError: UnknownCode.
    """
    found = entries().get(code) or gaps().get(code)
    if found is None:
        raise unknown_code_error(code)
    return found


@once
def entries() -> Mapping[str, CatalogueEntry]:
    """Return every entry by code, including those of missing facts for each path and capability."""
    topics = (*EVERY_PATH, *CAPABILITIES)
    missing = {gap.replace(ANY_TOPIC, topic): entry for topic in topics for gap, entry in gaps().items()}
    return {**reason_entries(), **missing}


def reason_entries() -> Mapping[str, CatalogueEntry]:
    """Return the entries of reasons/, by code: all except those of missing facts."""
    return _REASONS


def _entry(code: str, row: Mapping[str, Any]) -> CatalogueEntry:
    parsed = parse_row(code, row, texts=("only",))
    parsed["only"] = tuple(path for word in parsed.get("only", ()) for path in GROUPS.get(word, (word,)))
    parsed["older"] = (*parsed.get("older", ()), *_subjects_too_old(row.get("when", {})))
    return CatalogueEntry(**parsed)


def _subjects_too_old(when: Mapping[str, Any]) -> Iterator[str]:
    """Yield the subjects that a condition requires to be older than some version."""
    for question, expected in when.items():
        if str(expected).startswith("<"):
            yield from ("windows", "server") if question == "OperatingSystem.build" else (question,)


_REASONS = Catalogue(_FOLDER / "reasons", _entry)
_GAPS = Catalogue(_FOLDER / "gaps.yaml", lambda _, row: CatalogueEntry(**row))
_REMEDIES = Catalogue(_FOLDER / "remedies.yaml", lambda key, row: KnownRemedy(key, **row))


@once
def gaps() -> Mapping[str, CatalogueEntry]:
    """Return the entries of gaps.yaml by code, such as `*.unknown`."""
    return {f"{ANY_TOPIC}.{name}": entry for name, entry in _GAPS.items()}


def remedies() -> Mapping[str, KnownRemedy]:
    """Return the remedies by id."""
    return _REMEDIES


def remedy(key: str | None) -> Remedy | None:
    """Return the remedy with this id, without its effect on facts; None for no id."""
    return _remedies_without_effects()[key] if key else None


@once
def _remedies_without_effects() -> Mapping[str, Remedy]:
    return {key: Remedy(key, known.do, known.who, known.unverified) for key, known in _REMEDIES.items()}


@once
def evidence() -> Mapping[str, Evidence]:
    """Return the evidence by id: the shared evidence, and what rows read so far define inline."""
    return ChainMap(INLINE_EVIDENCE, dict(Catalogue(_FOLDER / "evidence", parse_evidence)))


def evidence_of(ids: Iterable[str]) -> tuple[Evidence, ...]:
    return tuple(evidence()[key] for key in ids)


def _topic(name: str, row: Mapping[str, Any]) -> Topic:
    return Topic(**{**row, "grounds": parse_row(name, row.get("grounds", {}))})


@once
def topics() -> Mapping[str, Topic]:
    """Paths and capabilities, by name."""
    return {**Catalogue(_FOLDER / "paths.yaml", _topic), **Catalogue(_FOLDER / "capabilities", _topic)}


# --- The explanation of a code, with related codes -------------------------------------------------------------------

MAX_RELATED = 5
# The weight of each thing that two reasons may have in common.
EVIDENCE_WEIGHT = 4  # for each piece
REMEDY_WEIGHT = 3
FACT_WEIGHT = 3  # `dda.virtualization-off`, `wsl2.virtualization-off`
TOPIC_WEIGHT = 1


def related(code: str, entry: CatalogueEntry, entries: Mapping[str, CatalogueEntry]) -> tuple[str, ...]:
    """Return the most similar codes of `entries`, at most MAX_RELATED; of equally similar ones the nearer in the
    catalogue come first.
    """
    order = {name: number for number, name in enumerate(entries)}
    own = order.get(code, 0)
    scores = {name: similarity((code, entry), (name, other)) for name, other in entries.items() if name != code}
    similar = [name for name, score in scores.items() if score]
    return tuple(sorted(similar, key=lambda name: (-scores[name], abs(order[name] - own), name))[:MAX_RELATED])


def similarity(one: tuple[str, CatalogueEntry], other: tuple[str, CatalogueEntry]) -> int:
    """Return how much two reasons have in common (symmetric); 0: nothing."""
    (topic, _, fact), (other_topic, _, other_fact) = (code.partition(".") for code, _ in (one, other))
    entry, other_entry = one[1], other[1]
    return (
        EVIDENCE_WEIGHT * len({*entry.evidence} & {*other_entry.evidence})
        + REMEDY_WEIGHT * (entry.remedy is not None and entry.remedy == other_entry.remedy)
        + FACT_WEIGHT * (fact == other_fact)
        + TOPIC_WEIGHT * (topic == other_topic)
    )


@once
def explain(code: str) -> Explanation:
    """Return the explanation of a code. Cached, because the reports of many hosts explain the same codes.

    Raises UsageError: UnknownCode.
    """
    found = entry(code)
    return Explanation(
        code=code,
        sentence=found.sentence,
        means=found.means,
        risks=found.risks,
        remedy=remedy(found.remedy),
        evidence=evidence_of(found.evidence),
        related=related(code, found, reason_entries()),
    )
