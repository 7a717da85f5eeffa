"""The layout of a finding for people: the order of its parts, and the texts of its remedy and evidence. The terminal,
the report and the docs share it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from winhost.core.dataclass import dataclass
from winhost.model.reason import Evidence, Finding, Mender, Remedy

_WHO_ACTS: Mapping[Mender, str] = {
    "winhost": "winhost does this",
    "firmware": "in the firmware's setup",
    "money": "a purchase",
}
"""Omits the administrator, who reads the finding."""


@dataclass(frozen=True)
class FindingView:
    """The parts of a finding in words; what is empty is left out.

    position: where it is, as `FILE:LINE:COLUMN`; subject: what it is about; observed: what was seen; details: further
    sentences; unverified: what is not known and could make it untrue; remedy: from `format_remedy`; in_full: show
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
        """The first line."""
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
                yield f"Evidence {piece.id} ({describe_evidence(piece)})"
                yield from (f"  {line}" for line in evidence_lines(piece))
            else:
                yield f"Evidence {piece.id}: {format_source(piece)}"


def finding_view(finding: Finding, *notes: str, **parts: Any) -> FindingView:
    """Make the view of a finding. notes: added to its remedy; parts: fields that are added or replaced."""
    common = FindingView(
        finding.sentence,
        code=finding.code,
        severity=finding.severity,
        observed=finding.observed,
        remedy=format_remedy(finding.remedy, *notes),
    )
    return replace(common, **parts)


def format_remedy(remedy: Remedy | None, *notes: str) -> str:
    """Format what to do; in parentheses who does it, unless the administrator does, whether it is unverified, and
    notes.
    """
    if remedy is None:
        return "; ".join(filter(None, notes))
    doubt = "unverified: no report confirms that it helps" if remedy.unverified else ""
    comments = "; ".join(note for note in (_WHO_ACTS.get(remedy.who, ""), doubt, *notes) if note)
    return f"{remedy.do} ({comments})" if comments else remedy.do


def describe_evidence(piece: Evidence) -> str:
    """Format the kind of evidence, its confidence, when its source was read, and for which versions it holds."""
    return f"{piece.kind}, confidence {piece.confidence}, seen {piece.seen}, valid for {piece.holds}"


def format_source(piece: Evidence) -> str:
    """Format the source of a claim in one line."""
    return f"{piece.source} ({describe_evidence(piece)})"


def evidence_lines(piece: Evidence) -> Iterator[str]:
    """Yield the claim, its source and, if the claim is open, what would settle it."""
    yield piece.claim
    yield f"Source: {piece.source}"
    if piece.settles:
        yield f"What would settle it: {piece.settles}"
