"""The answer of `explain --json` to what was pasted; `winhost schema` publishes its shape.

Its classes are no further findings but the published form of `SymptomFinding` and `CauseFinding`: evidence stands there
in full, where a finding has ids that only winhost can look up; the severity of a cause is written as its standing,
because nothing weighs on the host by itself; and fields that are always empty here are left out.
"""

from winhost.core.dataclass import dataclass
from winhost.knowledge import catalogue
from winhost.model.reason import Evidence, Mender, Severity
from winhost.symptoms.codes import UnknownCode
from winhost.symptoms.diagnosis import By, CauseFinding, Diagnosed, Standing, SymptomFinding


@dataclass(frozen=True)
class LikelyCause:
    """standing: what the rest of the text and the facts of the host say of it; because: what of them; by: which of
    the two says so, None where neither does.

    who: does the remedy; reason: a code that winhost explain knows more of.
    """

    cause: str
    standing: Standing
    because: str
    by: By | None
    tell: str
    remedy: str
    who: Mender
    reason: str | None
    evidence: tuple[Evidence, ...]

    @classmethod
    def of(cls, found: CauseFinding) -> "LikelyCause":
        return cls(
            cause=found.sentence,
            standing=found.standing,
            because=found.observed,
            by=found.by,
            tell=found.tell,
            remedy=found.remedy or "",
            who=found.who,
            reason=found.reason,
            evidence=catalogue.evidence_of(found.evidence),
        )


@dataclass(frozen=True)
class FoundSymptom:
    """severity: as of Symptom; line: the first that says it, from 1; text: that line, without secrets; count: how many
    say it; all three are empty where a symptom was asked for by name. signs: what logs have of it; causes: the
    likeliest first, those that the facts contradict last.
    """

    symptom: str
    program: str
    says: str
    severity: Severity
    line: int
    count: int
    text: str
    signs: tuple[str, ...]
    causes: tuple[LikelyCause, ...]

    @classmethod
    def of(cls, found: SymptomFinding) -> "FoundSymptom":
        return cls(
            symptom=found.code,
            program=found.subject,
            says=found.sentence,
            severity=found.severity,
            line=found.line,
            count=found.count,
            text=found.observed,
            signs=found.signs,
            causes=tuple(map(LikelyCause.of, found.causes)),
        )


@dataclass(frozen=True)
class Diagnosis:
    """The explanation of a text. source: a file, `-`, `text`, or the name of a symptom; host: whose facts were used."""

    source: str
    host: str | None
    lines: int
    found: tuple[FoundSymptom, ...]
    unknown_codes: tuple[UnknownCode, ...]

    @classmethod
    def of(cls, told: Diagnosed) -> "Diagnosis":
        return cls(told.source, told.host, told.lines, tuple(map(FoundSymptom.of, told.found)), told.unknown_codes)
