"""Tests that every command shows a finding in the same way."""

from tests.cli.conftest import Line
from winhost.cli.output import show_finding
from winhost.findings.show import FindingView, describe_evidence, format_remedy, format_source
from winhost.knowledge import catalogue
from winhost.model.reason import Remedy

WHOLE = FindingView(
    "It is so.",
    code="a.code",
    severity="wrong",
    position="file:1:2",
    subject="engine",
    observed="7",
    details=("why: it is.",),
    unverified="the version is not known",
    remedy=format_remedy(Remedy(None, "Change it.", "firmware", unverified=True), "--fix does this"),
    evidence=catalogue.evidence_of(["wsl-mcdm"]),
)


def test_the_parts_of_a_finding_have_one_order(line: Line) -> None:
    show_finding(WHOLE, lead="  1. ")
    piece = WHOLE.evidence[0]
    assert line.capture.readouterr().out.splitlines() == [
        "  1. file:1:2: wrong: It is so. [a.code] (engine)",
        "     observed: 7",
        "     why: it is.",
        "     unverified: the version is not known",
        "     → Change it. (in the firmware's setup; unverified: no report confirms that it helps; --fix does this)",
        f"     Evidence wsl-mcdm: {format_source(piece)}",
    ]
    show_finding(FindingView("It is so.", evidence=WHOLE.evidence, in_full=True))
    assert line.capture.readouterr().out.splitlines() == [
        "It is so.",
        f"  Evidence wsl-mcdm ({describe_evidence(piece)})",
        f"    {piece.claim}",
        f"    Source: {piece.source}",
        f"    What would settle it: {piece.settles}",
    ]


def test_the_words_of_evidence_have_its_kind_date_and_versions() -> None:
    piece = WHOLE.evidence[0]
    for part in (piece.kind, piece.confidence, piece.seen, piece.holds, piece.source):
        assert part in format_source(piece)
