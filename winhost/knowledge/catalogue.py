"""The catalogue: what each reason's code says to people, what to do about it, and what it rests on.

reasons/: by code, why it matters (sentence), what follows (means), the remedy, the evidence (none where the eye is
enough) and the consents it asks for (risks). evidence/: what a stranger can check. gaps.yaml: what is said where a fact
or evidence lacks, of whatever path or capability. paths.yaml, capabilities/: what each is, and what its being
supported rests on (grounds). Severity and condition are in the rules.
"""

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from importlib.resources import files
from typing import Any, Literal

from winhost.core.dataclass import dataclass
from winhost.findings.catalogue import CITED, Catalogue, proof, typed
from winhost.findings.condition import Condition, Reader, Undecided, say
from winhost.model.capabilities import CAPABILITIES
from winhost.model.errors import UsageError, did_you_mean, visible
from winhost.model.once import once
from winhost.model.path import EVERY_PATH, GROUPS, path_of
from winhost.model.reason import Evidence, Explanation, KnownRemedy, Remedy, Severity

ANY = "*"  # stands for every path and capability

_HERE = files(__package__)


@dataclass(frozen=True)
class CatalogueEntry:
    """sentence: why it matters; means: what follows for the user; remedy, evidence: ids; risks: consents.

    severity: of what its rule finds, None where the rule decides; some: instead, where `which` chose not all; unknown:
    what a fact that was not read causes; only: the paths and variants that it is about, none for all of them; also:
    other capabilities that it is about; each: what it is asked of; when, which, observed: the rule itself, the GPUs
    that it is about, and what it says of the facts; none: what none of the GPUs may be; among, named: what else both
    choose from, and how each is named; asks: the judge (a function of compat) in the place of `observed`, asked where
    `when` holds; case: for tests. older: of which (versions.yaml) it finds a version that is too old, so that its
    evidence begins with a newer one; `when` tells it by itself.
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

    def choice(self, reading: Callable[[str], Reader]) -> Callable[[Sequence[Any]], Sequence[Any] | None]:
        """Compile the row's choice among several. It returns those that are as `which` wants them; without that, all of
        them; None where none is, or one is as `none` forbids. It raises MissingFact.
        """
        forbidden = self.none.by(reading) if self.none is not None else None
        wanted = self.which.by(reading) if self.which else None

        def chosen(ones: Sequence[Any]) -> Sequence[Any] | None:
            if forbidden and any(map(forbidden, ones)):
                return None
            found = list(filter(wanted, ones)) if wanted else ones
            return found if found or (forbidden and not wanted) else None

        return chosen

    def name_all(self, ones: Iterable[Any]) -> str:
        """Name those that the row chose, each name once."""
        return ", ".join(dict.fromkeys(say(self.named or "{label}", one) for one in ones))


@dataclass(frozen=True)
class Topic:
    """A path or a capability. title, means: for people; grounds: evidence ids, by path or variant; loses: trade-offs.

    asks: by variant, the setting without which a plan does not use it.
    """

    title: str
    means: str
    grounds: Mapping[str, tuple[str, ...]]
    loses: str | None = None
    asks: Mapping[str, str] = field(default_factory=dict)

    def rests_on(self, variant: str) -> tuple[str, ...]:
        """Evidence that it works where no reason speaks against it: that of the variant, else of the path."""
        return self.grounds.get(variant, self.grounds.get(path_of(variant), ()))


def unknown_code(code: str, others: Iterable[str] = ()) -> UsageError:
    """The error for a code that no reason has. others: further codes that can be explained."""
    every = [*entries(), *others]
    begun = sum(known.startswith(f"{code}.") for known in every)
    what = f"no reason has the code '{visible(code)}'{did_you_mean(code, every)}"
    hint = "winhost assess shows the codes that apply to a host; winhost explain --list shows all of them"
    meaning = None
    if begun:
        what = f"'{visible(code)}' is no code, but the beginning of {begun} codes"
        meaning = "winhost explain takes a whole code, what another program printed when it failed, or a log file."
        topic = _TOPICS.get(code, code)
        asked = "--path" if topic in EVERY_PATH else "--need" if topic in CAPABILITIES else None
        lead = f"Whether a host can do it, and why: winhost assess HOST {asked} {topic}\n" if asked else ""
        hint = f"{lead}All codes that begin with it: winhost explain --list {code}"
    return UsageError("UnknownCode", what=what, meaning=meaning, hint=hint)


_TOPICS = {"mmio": "dda", "wsl": "wsl2"}  # what begins codes without being a path or a capability


def entry(code: str) -> CatalogueEntry:
    """The entry of a code, or of a missing fact (`*.unknown`).

    Raises UsageError: UnknownCode.
    """
    found = entries().get(code) or gaps().get(code)
    if found is None:
        raise unknown_code(code)
    return found


@once
def entries() -> Mapping[str, CatalogueEntry]:
    """Every entry by code, those of missing facts included."""
    topics = (*EVERY_PATH, *CAPABILITIES)
    lacking = {gap.replace(ANY, topic): entry for topic in topics for gap, entry in gaps().items()}
    return {**own_entries(), **lacking}


def own_entries() -> Mapping[str, CatalogueEntry]:
    """The entries with a condition of their own, by code."""
    return _REASONS


def _entry(code: str, row: Mapping[str, Any]) -> CatalogueEntry:
    told = typed(code, row, texts=("only",))
    told["only"] = tuple(path for word in told.get("only", ()) for path in GROUPS.get(word, (word,)))
    told["older"] = (*told.get("older", ()), *_below(row.get("when", {})))
    return CatalogueEntry(**told)


def _below(when: Mapping[str, Any]) -> Iterator[str]:
    """The subjects that a condition requires to be older than some version."""
    for question, wanted in when.items():
        if str(wanted).startswith("<"):
            yield from ("windows", "server") if question == "OperatingSystem.build" else (question,)


_REASONS = Catalogue(_HERE / "reasons", _entry)
_GAPS = Catalogue(_HERE / "gaps.yaml", lambda _, row: CatalogueEntry(**row))
_REMEDIES = Catalogue(_HERE / "remedies.yaml", lambda key, row: KnownRemedy(key, **row))


@once
def gaps() -> Mapping[str, CatalogueEntry]:
    """The entries for missing facts of any path or capability, by `*.unknown`."""
    return {f"{ANY}.{name}": entry for name, entry in _GAPS.items()}


def remedies() -> Mapping[str, KnownRemedy]:
    """The remedies by id."""
    return _REMEDIES


def remedy(key: str | None) -> Remedy | None:
    """The words of the remedy with this id, without its effect on facts; None for no id."""
    return _told_remedies()[key] if key else None


@once
def _told_remedies() -> Mapping[str, Remedy]:
    return {key: Remedy(key, known.do, known.who, known.unverified) for key, known in _REMEDIES.items()}


@once
def evidence() -> Mapping[str, Evidence]:
    """The evidence by id: what several rows share, and what stands within the rows read so far."""
    return ChainMap(CITED, dict(Catalogue(_HERE / "evidence", proof)))


def evidence_of(ids: Iterable[str]) -> tuple[Evidence, ...]:
    """The pieces with these ids."""
    return tuple(evidence()[key] for key in ids)


def _topic(name: str, row: Mapping[str, Any]) -> Topic:
    return Topic(**{**row, "grounds": typed(name, row.get("grounds", {}))})


@once
def topics() -> Mapping[str, Topic]:
    """Paths and capabilities, by name."""
    return {**Catalogue(_HERE / "paths.yaml", _topic), **Catalogue(_HERE / "capabilities", _topic)}


# --- What explain says of a code, with reasons about the same thing, found by what they have in common ----------------

MOST_RELATED = 5
# What two reasons have in common, by how surely it makes them speak of one thing.
SAME_EVIDENCE = 4  # each piece
SAME_REMEDY = 3
SAME_FACT = 3  # `dda.virtualization-off`, `wsl2.virtualization-off`
SAME_TOPIC = 1


def related(code: str, entry: CatalogueEntry, entries: Mapping[str, CatalogueEntry]) -> tuple[str, ...]:
    """Codes of `entries`, the closest first; of equally close ones those that stand nearer in the catalogue."""
    order = {name: number for number, name in enumerate(entries)}
    here = order.get(code, 0)
    bonds = {name: bond((code, entry), (name, other)) for name, other in entries.items() if name != code}
    close = [name for name, strength in bonds.items() if strength]
    return tuple(sorted(close, key=lambda name: (-bonds[name], abs(order[name] - here), name))[:MOST_RELATED])


def bond(one: tuple[str, CatalogueEntry], other: tuple[str, CatalogueEntry]) -> int:
    """A symmetric measure of what two reasons have in common; 0: nothing."""
    (topic, _, fact), (other_topic, _, other_fact) = (code.partition(".") for code, _ in (one, other))
    mine, others = one[1], other[1]
    return (
        SAME_EVIDENCE * len({*mine.evidence} & {*others.evidence})
        + SAME_REMEDY * (mine.remedy is not None and mine.remedy == others.remedy)
        + SAME_FACT * (fact == other_fact)
        + SAME_TOPIC * (topic == other_topic)
    )


@once
def explain(code: str) -> Explanation:
    """Kept: the reports of many hosts explain the same codes. Raises UsageError: UnknownCode."""
    found = entry(code)
    return Explanation(
        code=code,
        sentence=found.sentence,
        means=found.means,
        risks=found.risks,
        remedy=remedy(found.remedy),
        evidence=evidence_of(found.evidence),
        related=related(code, found, own_entries()),
    )
