"""Until when something is known: ranges of evidence against the versions that a host has."""

import re
from dataclasses import replace

import pytest
from packaging.version import Version

from winhost.compat.assess import assess
from winhost.knowledge import catalogue
from winhost.knowledge.versions import Span, beyond, bounded, known_range, spans, subjects
from winhost.lab.hostfile import expand, find
from winhost.model.facts import Facts
from winhost.model.reason import Reason, Severity, Verdict
from winhost.resources.host import HostFacts

FACTS = expand(find("win11-pro-2xl20-wddm"))[0]
NOT_RANGES = re.compile(r"WSL (1|2)\b(?!\.)")  # the two kinds of WSL, and no versions


def test_ranges_are_read_as_they_are_written() -> None:
    newest = {what: known_range(what)[1] for what in (subjects()[name].what for name in bounded())}
    written = {
        "WSL 2.5 to 2.9": [("WSL", "2.5", "2.9")],
        "WSL up to 2.9": [("WSL", None, "2.9")],
        "vLLM 0.32 and 0.33": [("vLLM", "0.32", "0.33")],
        "nvidia-container-toolkit 1.18 and newer": [
            ("nvidia-container-toolkit", "1.18", newest["nvidia-container-toolkit"])
        ],
        "drivers up to R595": [("NVIDIA drivers", None, "595")],
        "Windows Server 2025, WSL 2.2 to 2.6": [("WSL", "2.2", "2.6")],
        "vLLM 0.24.0; the code of 0.33.0 is the same": [],
        "all WSL 2": [],
    }
    read = {
        holds: [(each.what, each.first and str(each.first), str(each.newest)) for each in spans(holds)]
        for holds in written
    }
    assert read == {holds: [(what, first, str(last)) for what, first, last in told] for holds, told in written.items()}


def test_a_newer_build_is_of_a_known_line_and_a_newer_line_is_not() -> None:
    cases = {
        ("WSL", "2.9", "2.12.1"): False,
        ("WSL", "2.9", "3.0.1"): True,
        ("vLLM", "0.33", "0.33.4"): False,
        ("vLLM", "0.33", "0.34.0"): True,
        ("NVIDIA drivers", "595", "595.97"): False,
        ("NVIDIA drivers", "595", "610.10"): True,
        ("nvidia-container-toolkit", "1.19", "1.20.0"): True,
    }
    said = {case: Span(case[0], None, Version(case[1])).ends_before(Version(case[2])) for case in cases}
    assert said == cases


def test_evidence_decides_as_long_as_any_piece_reaches_the_host() -> None:
    piece = catalogue.evidence()["wsl-bridge-needs-switch"]
    ended, open_ended = replace(piece, holds="WSL 2.5 to 2.9"), replace(piece, holds="Windows 11")
    host = {"wsl": Version("3.0.1")}
    assert beyond([ended], host) == f"WSL 3.0.1, newer than winhost knows (checked up to 2.9, {piece.seen})"
    assert beyond([ended, open_ended], host) is None
    assert beyond([ended], {}) is None
    assert "could not be read" in (beyond([ended], {"wsl": None}) or "")


def test_no_evidence_of_an_older_line_decides_a_verdict() -> None:
    """On WSL 3, and with a vLLM that nobody looked into."""
    for stated in ({"wsl": Version("3.0.1")}, {"vllm": Version("0.99.0"), "wsl": Version("2.7.14")}):
        judged = list(assess(HostFacts(FACTS), stated=stated).path("wsl2").every_variant)
        deciding = [reason for each in judged for reason in each.every_reason if decides(reason)]
        deciding += [
            reason for each in judged for told in each.capabilities for reason in told.reasons if decides(reason)
        ]
        assert deciding
        short = [r.code for r in deciding if beyond((catalogue.evidence()[key] for key in r.evidence), stated)]
        assert short == []
        trusted = [told for each in judged for told in each.capabilities if told.verdict is Verdict.SUPPORTED]
        assert [t.capability for t in trusted if beyond((catalogue.evidence()[key] for key in t.grounds), stated)] == []


def decides(reason: Reason) -> bool:
    return reason.severity in (Severity.UNSUPPORTED, Severity.DEGRADED)


def verdicts(facts: Facts, wsl: str) -> list[tuple[str, Verdict, list[Verdict]]]:
    judged = assess(HostFacts(facts), stated={"wsl": Version(wsl)}).path("wsl2").every_variant
    return [(each.path, each.verdict, [told.verdict for told in each.capabilities]) for each in judged]


@pytest.mark.parametrize("newer", ["2.7.99", "2.99.0"])
def test_a_newer_build_of_a_known_line_stays_as_judged(newer: str) -> None:
    assert verdicts(FACTS, newer) == verdicts(FACTS, "2.7.14")


def test_what_names_versions_of_software_is_a_range_or_a_report() -> None:
    """A range that is written in another way would never end."""
    unread = []
    for key, piece in catalogue.evidence().items():
        for part in re.split(r"[,;] ", piece.holds):
            named = re.match(r"(WSL|vLLM|nvidia-container-toolkit|drivers) R?\d", part)
            if named and re.search(r" (to|and newer)\b", part) and not NOT_RANGES.match(part) and not spans(part):
                unread.append((key, part))
    assert unread == []
