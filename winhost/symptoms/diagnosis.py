"""Explains a text: judges the causes of its symptoms by the rest of the text and by the facts of a host."""

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
from winhost.symptoms.codes import Code, UnknownCode, describe_code, spellings
from winhost.symptoms.scan import Hit, rank_hits, scan
from winhost.symptoms.table import MACHINES, ORIGINS, KnownCause, Symptom, marks, symptoms

Standing: TypeAlias = Literal["shown", "possible", "ruled-out"]
STANDINGS: Mapping[Severity, Standing] = {
    Severity.UNSUPPORTED: "shown",
    Severity.UNVERIFIED: "possible",
    Severity.NOTE: "ruled-out",
}
"""The standing of a cause, by its severity."""
By: TypeAlias = Literal["text", "facts"]


@dataclass(frozen=True)
class Ruling:
    """The judgement of a cause. severity: one of STANDINGS; because: what the facts or the text say about it, empty if
    nothing; by: which of the two; matches_origin: the cause is specific to the origin of the text; lacks_companion:
    other lines would show the cause, and the text has none of them.
    """

    severity: Severity
    because: str = ""
    by: By = "facts"
    matches_origin: bool = False
    lacks_companion: bool = False


SHOWN, POSSIBLE, RULED_OUT = STANDINGS


class Rulings:
    """Judges causes by the marks in the text, by its origin, and by the facts of a host.

    seen: the marks of the text, each with its line; None if there is no text. If the text does not show on which
    machine it was written, the facts of the host narrow that down.
    """

    def __init__(self, seen: Mapping[str, str] | None, facts: HostFacts | None) -> None:
        self._shows, self._read, self._facts = tuple(seen or ()), seen is not None, facts
        origins = [set(marks()[name].origins) for name in self._shows]
        self._origins = {
            kind: {*known}.intersection(*(each for each in origins if not each.isdisjoint(known)))
            for kind, known in ORIGINS.items()
        }
        self._machine_source: By = "text"
        if facts is not None and len(self._origins["machine"]) in (0, len(MACHINES)):
            self._origins["machine"], self._machine_source = _machines_of(facts), "facts"
        self._reasons: dict[str, dict[str, str]] = {}

    def _ask(self, question: str) -> tuple[Any, ...]:
        """Answer a question about the text (its marks and possible origins) or about the facts."""
        if question == "shows":
            return (self._shows,)
        if question in ORIGINS and self._origins[question]:
            return tuple(self._origins[question])
        if question in ORIGINS or self._facts is None:
            raise MissingFact(question, NOT_READ)
        return self._facts.ask(question)

    def exclude(self, symptom: Symptom) -> bool:
        """Tell whether the text contradicts every cause, such as when another engine prints the same words."""
        return all(evaluate(cause.origin_condition, self._ask).holds is False for cause in symptom.causes)

    def judge(self, cause: KnownCause) -> Ruling:
        """Judge a cause. What contradicts it takes precedence over what shows it, and the text over the facts."""
        allowed = evaluate(cause.origin_condition, self._ask)
        if allowed.holds is False:
            return self._contradicted(cause, *allowed.seen)
        here = any(len(at) < len(ORIGINS[kind]) for kind, at in allowed.seen.items() if kind in ORIGINS)
        needed = evaluate(cause.when, self._ask, exhaustive=True)
        because = "; ".join(f"{fact} is {_format_values(values)}" for fact, values in needed.seen.items())
        if needed.holds is False:
            return Ruling(RULED_OUT, because, matches_origin=here)
        if shown := self._first_shown((*cause.beside, *cause.shown_by)):
            return Ruling(SHOWN, shown, "text", here)
        if cause.reason and (seen := self._observed(cause.reason)) is not None:
            return Ruling(SHOWN, seen, matches_origin=here)
        unseen = bool(cause.beside)
        if because and needed.holds:
            return Ruling(POSSIBLE, because, matches_origin=here, lacks_companion=unseen)
        if not unseen or not self._read:
            return Ruling(POSSIBLE, matches_origin=here, lacks_companion=unseen)
        companions = " or ".join(marks()[name].shows for name in cause.beside)
        return Ruling(POSSIBLE, f"only if {companions}, which it does not show", "text", here, unseen)

    def _contradicted(self, cause: KnownCause, question: str) -> Ruling:
        if question == "shows":
            return Ruling(RULED_OUT, self._first_shown(cause.unless), "text")
        by = self._machine_source if question == "machine" else "text"
        return Ruling(RULED_OUT, f"it is {_name_origins(self._origins[question])}", by)

    def _first_shown(self, names: Iterable[str]) -> str:
        return next((marks()[name].shows for name in names if name in self._shows), "")

    def _observed(self, code: str) -> str | None:
        """Return what the rule of a reason observed on this host; None if it found nothing, or is not a rule of
        a path.
        """
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


def _machines_of(facts: HostFacts) -> set[str]:
    """Return the machines that a text from this host may come from; empty if the facts do not tell."""
    try:
        if facts.is_linux:
            in_wsl = facts.ask("LinuxSystem.wsl") == (True,)
            return {"wsl", "docker-desktop"} if in_wsl else {"metal", "dda", "gpu-pv"}
        family = facts.os.family
    except MissingFact:
        return set()
    on_every = {"windows", "wsl", "docker-desktop", "gpu-pv"}
    return on_every if family is OsFamily.CLIENT else on_every | {"dda"}


def _name_origins(origins: set[str]) -> str:
    named = origins - {"docker-desktop"} if "wsl" in origins else origins  # Docker Desktop runs in WSL
    if "pytorch" in origins or "llama.cpp" in origins:  # other programs contain it
        named = origins & {"pytorch", "llama.cpp"}
    return " or ".join(words for known in ORIGINS.values() for origin, words in known.items() if origin in named)


def _format_values(values: tuple[Any, ...]) -> str:
    return " and ".join(dict.fromkeys(map(_format_value, values))) or "not there"


def _format_value(value: Any) -> str:
    """Format a value as facts files do."""
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value)


MAX_EXCERPT = 400  # characters of a line


@dataclass(frozen=True)
class CauseFinding(Finding):
    """A possible cause of a symptom. severity: unsupported if the rest of the text or the facts of the host show it,
    unverified if it is possible, note if they rule it out; observed: what they say about it; subject: the symptom.

    by: whether the text or the facts decide, None if neither does; tell: how to check whether it is this cause; reason:
    a code with a further explanation.
    """

    by: By | None = None
    tell: str = ""
    reason: str | None = None

    @property
    def standing(self) -> Standing:
        """The severity as a word."""
        return STANDINGS[self.severity]


@dataclass(frozen=True)
class SymptomFinding(Finding):
    """A symptom in a text. subject: the program that printed it; observed: the line with the symptom, without secrets;
    line: the number of the first such line, from 1; count: of such lines; the last three are empty if a symptom was
    requested by name. signs: how logs show it; causes: the likeliest first, those that the facts contradict last.
    """

    line: int = 0
    count: int = 0
    signs: tuple[str, ...] = ()
    causes: tuple[CauseFinding, ...] = ()


@dataclass(frozen=True)
class Diagnosed:
    """The explanation of a text. source: a file, `-`, `text`, or the name of a symptom; host: the host whose facts were
    used.
    """

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
    """The answer of `explain --json` about a text. evidence: the evidence of its causes."""

    evidence: tuple[Evidence, ...]


def diagnose(pieces: Iterable[str], source: str, facts: HostFacts | None = None) -> Diagnosed:
    """Explain a text that is read in pieces. Errors of winhost come after the symptoms that they may quote."""
    lines = own.OwnLines()
    seen = scan(lines.pieces(pieces))
    rulings = Rulings(seen.marks, facts)
    excluded = {name for name, hit in seen.hits.items() if rulings.exclude(hit.symptom)}
    hits = rank_hits(hit for name, hit in seen.hits.items() if name not in excluded)
    hits += rank_hits(hit for name, hit in seen.hits.items() if name in excluded and not hit.symptom.general)
    found = (*(_symptom_finding(hit, rulings) for hit in hits), *_own_findings(lines.lines))
    codes: Mapping[Code, int] = seen.codes if found else {**seen.codes, **seen.described}
    answered = " ".join((*(literal for hit in hits for literal in hit.literals), *map(_decisive_line, hits)))
    codes = {code: count for code, count in codes.items() if not _contains_code(answered, code)}
    return Diagnosed(
        source, facts.host if facts else None, seen.lines, found, tuple(starmap(describe_code, codes.items()))
    )


def _decisive_line(hit: Hit) -> str:
    """Return the line of a hit if it says what is wrong, so that a code in it needs no explanation of its own."""
    return hit.text.lower() if hit.symptom.severity is Severity.UNSUPPORTED and not hit.symptom.general else ""


def _contains_code(text: str, code: Code) -> bool:
    hexadecimal, *decimal = spellings(code.number)
    return any(written in text for written in (hexadecimal[2:], *decimal))


def explain_error_code(code: str) -> Diagnosed | None:
    """Explain an error of winhost by its code; None for an unknown code."""
    known = own.find_error(code)
    return Diagnosed(code, None, 0, (_own_finding(known, 0, ""),), ()) if known else None


def explain_symptom(name: str, facts: HostFacts | None = None) -> Diagnosed:
    """Explain a symptom by its name. Raises KeyError for an unknown name."""
    hit = Hit(symptoms()[name], 0, "")
    rulings = Rulings(None, facts)
    return Diagnosed(name, facts.host if facts else None, 0, (_symptom_finding(hit, rulings),), ())


def explain_fault(fault: RemoteFault, facts: HostFacts | None = None) -> SymptomFinding | None:
    """Explain an error that a host reported: by its codes, else by its message. Messages of Windows are in any
    language, so that only codes and identifiers match there.
    """
    for text in (" ".join((fault.cmdlet, fault.code, *fault.hresults)), fault.message):
        found = diagnose([text], fault.cmdlet, facts).found
        if found:
            return found[0]
    return None


def _own_findings(lines: Mapping[str, int]) -> Iterator[SymptomFinding]:
    """Yield the errors of winhost among these lines, each once."""
    reported: set[str] = set()
    for text, line in lines.items():
        known = own.match_error(text)
        if known and known.code not in reported:
            reported.add(known.code)
            yield _own_finding(known, line, _excerpt(text, own.BEGIN))


def _own_finding(known: own.OwnError, line: int, text: str) -> SymptomFinding:
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


def _symptom_finding(hit: Hit, rulings: Rulings) -> SymptomFinding:
    symptom = hit.symptom
    ruled = [(number, cause, rulings.judge(cause)) for number, cause in enumerate(symptom.causes, start=1)]
    ruled.sort(
        key=lambda each: (
            -each[2].severity.rank,
            each[2].lacks_companion,
            each[2].by != "text",
            not each[2].matches_origin,
        )
    )
    return SymptomFinding(
        code=symptom.id,
        severity=symptom.severity,
        subject=symptom.program,
        observed=_excerpt(hit.text, hit.literal),
        sentence=symptom.says,
        remedy=None,
        evidence=(),
        line=hit.line,
        count=hit.count,
        signs=tuple(sign.text or f"0x{sign.code or 0:08X}" for sign in symptom.signs),
        causes=tuple(_cause_finding(symptom.id, *each) for each in ruled),
    )


def _cause_finding(symptom: str, number: int, cause: KnownCause, ruling: Ruling) -> CauseFinding:
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


def _excerpt(line: str, literal: str) -> str:
    """Return a line, or the part around the literal. Secrets are masked before the line is cut."""
    text = masked(line)
    if len(text) <= MAX_EXCERPT:
        return text
    start = max(0, text.lower().find(literal) - MAX_EXCERPT // 3)
    return f"{'…' if start else ''}{text[start : start + MAX_EXCERPT]}{'…' if start + MAX_EXCERPT < len(text) else ''}"
