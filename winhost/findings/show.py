"""The one layout of a finding for people: the order of its parts, and the words of its remedy and evidence, which the
terminal, the report and the docs share.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.model.reason import Evidence, Finding, Mender, Remedy

_WHO: Mapping[Mender, str] = {
    "winhost": "winhost does this",
    "firmware": "in the firmware's setup",
    "money": "a purchase",
}
"""The administrator is whoever reads this, and goes without saying."""


@dataclass(frozen=True)
class Shown:
    """The parts of a finding in words; what is empty is left out.

    position: where it is, as `FILE:LINE:COLUMN`; subject: what it is about; observed: what was seen; details: further
    sentences; unverified: what is not known and could make it untrue; remedy: as `remedy_words` has it; in_full: show
    the claims of the evidence, not only its sources.
    """

    sentence: str
    code: str = ""
    severity: str = ""
    position: str = ""
    subject: str = ""
    observed: str = ""
    details: tuple[str, ...] = ()
    unverified: str = ""
    remedy: str = ""
    evidence: tuple[Evidence, ...] = ()
    in_full: bool = False

    @property
    def head(self) -> str:
        """Its first line."""
        before = "".join(f"{part}: " for part in (self.position, self.severity) if part)
        code = f" [{self.code}]" if self.code else ""
        return f"{before}{self.sentence}{code}{f' ({self.subject})' if self.subject else ''}"

    @property
    def body(self) -> Iterator[str]:
        """The lines that follow, some of them indented."""
        if self.observed:
            yield f"observed: {self.observed}"
        yield from self.details
        if self.unverified:
            yield f"unverified: {self.unverified}"
        if self.remedy:
            yield f"→ {self.remedy}"
        for piece in self.evidence:
            if self.in_full:
                yield f"Evidence {piece.id} ({standing(piece)})"
                yield from (f"  {line}" for line in evidence_lines(piece))
            else:
                yield f"Evidence {piece.id}: {cited(piece)}"


def shown(finding: Finding, *notes: str, **parts: Any) -> Shown:
    """A finding for people. notes: of its remedy; parts: further parts of Shown, or others instead of its own."""
    common = Shown(
        finding.sentence,
        code=finding.code,
        severity=finding.severity,
        observed=finding.observed,
        remedy=remedy_words(finding.remedy, *notes),
    )
    return replace(common, **parts)


def remedy_words(remedy: Remedy | None, *notes: str) -> str:
    """Say what to do, then who does it unless it is the administrator, whether anybody saw it help, and the notes."""
    if remedy is None:
        return "; ".join(filter(None, notes))
    doubt = "unverified: no report confirms that it helps" if remedy.unverified else ""
    told = "; ".join(note for note in (_WHO.get(remedy.who, ""), doubt, *notes) if note)
    return f"{remedy.do} ({told})" if told else remedy.do


def standing(piece: Evidence) -> str:
    """The kind of evidence, how sure it makes, when its source was read, and for which versions it holds."""
    return f"{piece.kind}, confidence {piece.confidence}, seen {piece.seen}, valid for {piece.holds}"


def cited(piece: Evidence) -> str:
    """The source of a claim, in one line."""
    return f"{piece.source} ({standing(piece)})"


def evidence_lines(piece: Evidence) -> Iterator[str]:
    """The claim with its source, and what would settle it where it is open."""
    yield piece.claim
    yield f"Source: {piece.source}"
    if piece.settles:
        yield f"What would settle it: {piece.settles}"
