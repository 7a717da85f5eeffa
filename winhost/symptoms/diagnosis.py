"""Judge causes by the rest of the text and the facts of a host, which show a cause, contradict it, or say nothing."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import starmap
from typing import Any, Literal, TypeAlias

from winhost.compat.assess import judge
from winhost.core.answers import NOT_READ, MissingFact, RemoteFault
from winhost.core.dataclass import dataclass
from winhost.findings.condition import evaluate
from winhost.knowledge import catalogue
from winhost.model.masking import masked
from winhost.model.path import PATHS_OF_LINUX, WINDOWS_VARIANTS, path_of
from winhost.model.reason import Evidence, Finding, Remedy, Severity
from winhost.resources.host import HostFacts
from winhost.resources.windows.read_only import OsFamily
from winhost.symptoms import own
from winhost.symptoms.codes import Code, UnknownCode, spellings, told
from winhost.symptoms.scan import Hit, ranked, scan
from winhost.symptoms.table import MACHINES, ORIGINS, KnownCause, Symptom, marks, symptoms

Standing: TypeAlias = Literal["shown", "possible", "ruled-out"]
STANDINGS: Mapping[Severity, Standing] = {
    Severity.UNSUPPORTED: "shown",
    Severity.UNVERIFIED: "possible",
    Severity.NOTE: "ruled-out",
}
"""The words for a cause, by its severity."""
By: TypeAlias = Literal["text", "facts"]


@dataclass(frozen=True)
class Ruling:
    """severity: one of STANDINGS; because: what says so, in the facts or in the text; nothing where neither says
    anything. here: the cause belongs to where the text comes from; unseen: companions of the line would show
    it, and none of them is there.
    """

    severity: Severity
    because: str = ""
    by: By = "facts"
    here: bool = False
    unseen: bool = False


SHOWN, POSSIBLE, RULED_OUT = STANDINGS


class Rulings:
    """Judge causes by what else the text shows, by where it comes from, and by the facts of a host.

    seen: marks of the text, each with its line; None where there is no text. A host whose facts are known narrows the
    machines of a text that says nothing of them.
    """

    def __init__(self, seen: Mapping[str, str] | None, facts: HostFacts | None) -> None:
        self._shows, self._read, self._facts = tuple(seen or ()), seen is not None, facts
        told = [set(marks()[name].origins) for name in self._shows]
        self._at = {
            kind: {*known}.intersection(*(each for each in told if not each.isdisjoint(known)))
            for kind, known in ORIGINS.items()
        }
        self._machine_by: By = "text"
        if facts is not None and len(self._at["machine"]) in (0, len(MACHINES)):
            self._at["machine"], self._machine_by = _origins_of(facts), "facts"
        self._reasons: dict[str, dict[str, str]] = {}

    def _ask(self, question: str) -> tuple[Any, ...]:
        """Answer about the text (what it shows, and where it may come from), or about the facts."""
        if question == "shows":
            return (self._shows,)
        if question in ORIGINS and self._at[question]:
            return tuple(self._at[question])
        if question in ORIGINS or self._facts is None:
            raise MissingFact(question, NOT_READ)
        return self._facts.ask(question)

    def exclude(self, symptom: Symptom) -> bool:
        """The text contradicts each cause: another engine has the same words, or it comes from elsewhere."""
        return all(evaluate(cause.allowed, self._ask).holds is False for cause in symptom.causes)

    def of(self, cause: KnownCause) -> Ruling:
        """Rule on a cause: whatever contradicts it outweighs whatever shows it, and the text outweighs the facts."""
        allowed = evaluate(cause.allowed, self._ask)
        if allowed.holds is False:
            return self._contradicted(cause, *allowed.seen)
        here = any(len(at) < len(ORIGINS[kind]) for kind, at in allowed.seen.items() if kind in ORIGINS)
        needed = evaluate(cause.when, self._ask, exhaustive=True)
        because = "; ".join(f"{fact} is {_listed(values)}" for fact, values in needed.seen.items())
        if needed.holds is False:
            return Ruling(RULED_OUT, because, here=here)
        if shown := self._first_shown((*cause.beside, *cause.shown_by)):
            return Ruling(SHOWN, shown, "text", here)
        if cause.reason and (seen := self._found(cause.reason)) is not None:
            return Ruling(SHOWN, seen, here=here)
        unseen = bool(cause.beside)
        if because and needed.holds:
            return Ruling(POSSIBLE, because, here=here, unseen=unseen)
        if not unseen or not self._read:
            return Ruling(POSSIBLE, here=here, unseen=unseen)
        companions = " or ".join(marks()[name].shows for name in cause.beside)
        return Ruling(POSSIBLE, f"only if {companions}, which it does not show", "text", here, unseen)

    def _contradicted(self, cause: KnownCause, question: str) -> Ruling:
        if question == "shows":
            return Ruling(RULED_OUT, self._first_shown(cause.unless), "text")
        by = self._machine_by if question == "machine" else "text"
        return Ruling(RULED_OUT, f"it is {_either(self._at[question])}", by)

    def _first_shown(self, names: Iterable[str]) -> str:
        return next((marks()[name].shows for name in names if name in self._shows), "")

    def _found(self, code: str) -> str | None:
        """A rule's observation on this host; None where it found nothing, or the reason is not one of a path."""
        if self._facts is None:
            return None
        path = path_of(code.partition(".")[0])
        if path not in self._reasons:
            of_path = [variant for variant in (*WINDOWS_VARIANTS, *PATHS_OF_LINUX) if path_of(variant) == path]
            if self._facts.is_linux != (path in PATHS_OF_LINUX):
                of_path = []
            reasons = (reason for variant in of_path for reason in judge(self._facts, variant).every_reason)
            self._reasons[path] = {reason.code: reason.observed for reason in reasons}
        return self._reasons[path].get(code)


def _origins_of(facts: HostFacts) -> set[str]:
    """The origins that a text about this host may come from; empty if its facts do not tell what it is."""
    try:
        if facts.is_linux:
            in_wsl = facts.ask("LinuxSystem.wsl") == (True,)
            return {"wsl", "docker-desktop"} if in_wsl else {"metal", "dda", "gpu-pv"}
        family = facts.os.family
    except MissingFact:
        return set()
    on_every = {"windows", "wsl", "docker-desktop", "gpu-pv"}
    return on_every if family is OsFamily.CLIENT else on_every | {"dda"}


def _either(origins: set[str]) -> str:
    named = origins - {"docker-desktop"} if "wsl" in origins else origins  # which is WSL as well
    if "pytorch" in origins or "llama.cpp" in origins:  # others contain it
        named = origins & {"pytorch", "llama.cpp"}
    return " or ".join(words for known in ORIGINS.values() for origin, words in known.items() if origin in named)


def _listed(values: tuple[Any, ...]) -> str:
    return " and ".join(dict.fromkeys(map(_as_in_facts, values))) or "not there"


def _as_in_facts(value: Any) -> str:
    """Format a value as facts files do."""
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value)


LONGEST = 400  # characters of a line that are shown


@dataclass(frozen=True)
class CauseFinding(Finding):
    """One thing that may be behind a symptom. severity: unsupported where the rest of the text or the facts of the host
    show it, unverified where it is possible, note where they rule it out; observed: what of them; subject: the symptom.

    by: which of the two says so, None where neither does; tell: how to find out whether it is this; reason: a code that
    winhost explain knows more of.
    """

    by: By | None = None
    tell: str = ""
    reason: str | None = None

    @property
    def standing(self) -> Standing:
        """Its severity, in words."""
        return STANDINGS[self.severity]


@dataclass(frozen=True)
class SymptomFinding(Finding):
    """A symptom in a text. subject: the program that printed it; observed: the line that says it, without secrets;
    line: the first of `count`, from 1; all three are empty where a symptom was asked for by name. signs: what logs have
    of it; causes: the likeliest first, those that the facts contradict last.
    """

    line: int = 0
    count: int = 0
    signs: tuple[str, ...] = ()
    causes: tuple[CauseFinding, ...] = ()


@dataclass(frozen=True)
class Diagnosed:
    """The explanation of a text. source: a file, `-`, `text`, or the name of a symptom; host: whose facts were used."""

    source: str
    host: str | None
    lines: int
    found: tuple[SymptomFinding, ...]
    unknown_codes: tuple[UnknownCode, ...]

    @property
    def answer(self) -> "Diagnosis":
        """The answer for programs."""
        cited = dict.fromkeys(key for found in self.found for cause in found.causes for key in cause.evidence)
        return Diagnosis(**vars(self), evidence=catalogue.evidence_of(cited))


@dataclass(frozen=True)
class Diagnosis(Diagnosed):
    """The answer of `explain --json` to what was pasted. evidence: the pieces that its causes name."""

    evidence: tuple[Evidence, ...]


def diagnosis(pieces: Iterable[str], source: str, facts: HostFacts | None = None) -> Diagnosed:
    """Explain a text that comes in pieces. Errors of winhost come after the symptoms that they may quote."""
    lines = own.OwnLines()
    seen = scan(lines.pieces(pieces))
    rulings = Rulings(seen.marks, facts)
    excluded = {name for name, hit in seen.hits.items() if rulings.exclude(hit.symptom)}
    hits = ranked(hit for name, hit in seen.hits.items() if name not in excluded)
    hits += ranked(hit for name, hit in seen.hits.items() if name in excluded and not hit.symptom.general)
    found = (*(_found(hit, rulings) for hit in hits), *_own(lines.lines))
    codes: Mapping[Code, int] = seen.codes if found else {**seen.codes, **seen.spoken}
    answered = " ".join((*(literal for hit in hits for literal in hit.literals), *map(_explained, hits)))
    codes = {code: count for code, count in codes.items() if not _stands_in(answered, code)}
    return Diagnosed(source, facts.host if facts else None, seen.lines, found, tuple(starmap(told, codes.items())))


def _explained(hit: Hit) -> str:
    """The line of a hit that says what is wrong: the code in it needs no answer of its own."""
    return hit.text.lower() if hit.symptom.severity is Severity.UNSUPPORTED and not hit.symptom.general else ""


def _stands_in(text: str, code: Code) -> bool:
    hexadecimal, *decimal = spellings(code.number)
    return any(written in text for written in (hexadecimal[2:], *decimal))


def of_code(code: str) -> Diagnosed | None:
    """Explain an error of winhost by its code; None for an unknown code."""
    known = own.of_code(code)
    return Diagnosed(code, None, 0, (_of_own(known, 0, ""),), ()) if known else None


def of_symptom(name: str, facts: HostFacts | None = None) -> Diagnosed:
    """Explain a symptom by its name. Raises KeyError for an unknown name."""
    hit = Hit(symptoms()[name], 0, "")
    rulings = Rulings(None, facts)
    return Diagnosed(name, facts.host if facts else None, 0, (_found(hit, rulings),), ())


def of_fault(fault: RemoteFault, facts: HostFacts | None = None) -> SymptomFinding | None:
    """Explain an error that a host reported: by its codes, and by its words if no code is known. Windows may speak any
    language, so only codes and identifiers match there.
    """
    for text in (" ".join((fault.cmdlet, fault.code, *fault.hresults)), fault.message):
        found = diagnosis([text], fault.cmdlet, facts).found
        if found:
            return found[0]
    return None


def _own(lines: Mapping[str, int]) -> Iterator[SymptomFinding]:
    """The errors of winhost among these lines, each once."""
    told: set[str] = set()
    for text, line in lines.items():
        known = own.own_error(text)
        if known and known.code not in told:
            told.add(known.code)
            yield _of_own(known, line, _shown(text, own.BEGIN))


def _of_own(known: own.OwnError, line: int, text: str) -> SymptomFinding:
    code = f"winhost.{known.code}"
    cause = CauseFinding(
        code=f"{code}/1",
        severity=POSSIBLE,
        subject=code,
        observed="",
        sentence=_sentence(known.meaning or known.what),
        remedy=Remedy(None, known.hint or "Do what the lines below the error say."),
        evidence=(),
        tell=f"The lines below the error say it for this case. Its code is {known.code}.",
    )
    return SymptomFinding(
        code=code,
        severity=Severity.UNSUPPORTED,
        subject="winhost",
        observed=text,
        sentence=_sentence(f"An error of winhost itself: {known.what}"),
        remedy=None,
        evidence=(),
        line=line,
        count=1,
        signs=(f"error: {known.what}",),
        causes=(cause,),
    )


def _sentence(text: str) -> str:
    return text if text.endswith((".", ")", "…")) else f"{text}."


def _found(hit: Hit, rulings: Rulings) -> SymptomFinding:
    symptom = hit.symptom
    ruled = [(number, cause, rulings.of(cause)) for number, cause in enumerate(symptom.causes, start=1)]
    ruled.sort(key=lambda each: (-each[2].severity.rank, each[2].unseen, each[2].by != "text", not each[2].here))
    return SymptomFinding(
        code=symptom.id,
        severity=symptom.severity,
        subject=symptom.program,
        observed=_shown(hit.text, hit.literal),
        sentence=symptom.says,
        remedy=None,
        evidence=(),
        line=hit.line,
        count=hit.count,
        signs=tuple(sign.text or f"0x{sign.code or 0:08X}" for sign in symptom.signs),
        causes=tuple(_likely(symptom.id, *each) for each in ruled),
    )


def _likely(symptom: str, number: int, cause: KnownCause, ruling: Ruling) -> CauseFinding:
    return CauseFinding(
        code=f"{symptom}/{number}",
        severity=ruling.severity,
        subject=symptom,
        observed=masked(ruling.because),
        sentence=cause.cause,
        remedy=Remedy(None, cause.do) if cause.do else catalogue.remedy(cause.remedy),
        evidence=cause.evidence,
        by=ruling.by if ruling.because else None,
        tell=cause.tell,
        reason=cause.reason,
    )


def _shown(line: str, literal: str) -> str:
    """The line, or what is around the literal. It is masked before it is cut: half a secret is one, too."""
    text = masked(line)
    if len(text) <= LONGEST:
        return text
    start = max(0, text.lower().find(literal) - LONGEST // 3)
    return f"{'…' if start else ''}{text[start : start + LONGEST]}{'…' if start + LONGEST < len(text) else ''}"
