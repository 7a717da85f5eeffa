"""Until when something is known: ranges of evidence against the versions that a host has."""

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from packaging.version import Version

from winhost.compat.assess import assess
from winhost.knowledge import catalogue
from winhost.knowledge.versions import (
    Span,
    describe_newer_line,
    find_unchecked_version,
    known_range,
    spans,
    subjects,
    subjects_with_lines,
)
from winhost.lab.hostfile import expand, find
from winhost.model.facts import Facts
from winhost.model.reason import Finding, Severity, Verdict
from winhost.resources.host import HostFacts
from winhost.symptoms.table import symptoms

FACTS = expand(find("win11-pro-2xl20-wddm"))[0]
NOT_RANGES = re.compile(r"WSL (1|2|1\.x|2 and Docker)")  # the two kinds of WSL, and no versions


def test_ranges_are_read_as_they_are_written() -> None:
    newest = {subjects()[name].what: known_range(subjects()[name].what)[1] for name in subjects_with_lines()}
    written = {
        "WSL 2.5 to 2.9": [("WSL", "2.5", "2.9")],
        "WSL up to 2.9": [("WSL", None, "2.9")],
        "vLLM 0.32 and 0.33": [("vLLM", "0.32", "0.33")],
        "nvidia-container-toolkit 1.18 and newer": [
            ("nvidia-container-toolkit", "1.18", newest["nvidia-container-toolkit"])
        ],
        "drivers up to R595": [("NVIDIA drivers", None, "595")],
        "toolkit 1.14 to 1.18": [("nvidia-container-toolkit", "1.14", "1.18")],
        "Windows Server 2025, WSL 2.2 to 2.6": [("Windows Server", "26100", "26100"), ("WSL", "2.2", "2.6")],
        "Windows 10 and 11, Windows Server 2019 and newer": [
            ("Windows", "14393", newest["Windows"]),
            ("Windows Server", "17763", newest["Windows Server"]),
        ],
        "Windows 11 22H2": [("Windows", "22621", "22621")],
        "all Windows": [("Windows", None, newest["Windows"]), ("Windows Server", None, newest["Windows Server"])],
        "Ubuntu 24.04 and 26.04": [("Ubuntu", "24.4", "26.4")],
        "k3s v1.36": [("k3s", None, "1.36")],
        "vLLM 0.24.0; the code of 0.33.0 is the same": [("vLLM", None, "0.24.0")],
        "WSL 2.7, July 2026": [("WSL", None, "2.7")],
        "all WSL 2": [],
        "WSL 2, in NAT mode": [],
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


def test_a_range_begins_with_its_first_version_and_a_report_with_none() -> None:
    cases = {
        ("WSL", "2.5", "2.9", "2.4.13"): True,
        ("WSL", "2.5", "2.9", "2.5.7"): False,
        ("vLLM", None, "0.27.1", "0.11.0"): False,
        ("Windows", "22621", "28000", "19045"): True,
    }
    said = {
        case: Span(case[0], case[1] and Version(case[1]), Version(case[2])).begins_after(Version(case[3]))
        for case in cases
    }
    assert said == cases


def said_beyond(host: Mapping[str, Version | None], *holds: str, older: tuple[str, ...] = ()) -> str:
    piece = replace(catalogue.evidence()["wsl-bridge-needs-switch"], seen="2026-11-20")
    return str(find_unchecked_version([replace(piece, holds=each) for each in holds], host, older) or "")


def test_evidence_decides_as_long_as_any_piece_reaches_the_host() -> None:
    host = {"wsl": Version("3.0.1")}
    ended = "WSL 3.0.1, newer than winhost knows (checked up to 2.9, 2026-11-20)"
    assert said_beyond(host, "WSL 2.5 to 2.9") == ended
    assert said_beyond(host, "WSL 2.5 to 2.9", "WSL 2.9.3 to 3.0.5") == ""
    assert said_beyond({}, "WSL 2.5 to 2.9") == ""
    assert "could not be read" in said_beyond({"wsl": None}, "WSL 2.5 to 2.9")


def test_evidence_that_tells_no_version_does_not_reach_further_unless_it_holds_for_all() -> None:
    host = {"wsl": Version("3.0.1"), "windows": Version("26100")}
    assert "WSL 3.0.1" in said_beyond(host, "WSL 2.5 to 2.9", "Windows 11", "several machines")
    assert said_beyond(host, "WSL 2.5 to 2.9", "all") == ""
    assert said_beyond(host, "Windows 11") == ""


def test_evidence_of_newer_versions_does_not_decide_unless_the_finding_is_that_the_host_is_older() -> None:
    host = {"wsl": Version("2.0.9")}
    assert said_beyond(host, "WSL 2.5 to 2.9") == (
        "WSL 2.0.9, older than where this was seen (2.5 and newer, 2026-11-20)"
    )
    assert said_beyond(host, "WSL 2.5 to 2.9", older=("wsl",)) == ""
    assert said_beyond(host, "WSL 2.7.14") == "", "a report does not say since when"


def test_a_rule_about_versions_below_one_says_so_by_its_condition() -> None:
    entries = catalogue.reason_entries()
    assert entries["wsl2.no-mirror"].older == ("windows", "server")
    assert entries["kv-write-through.old-vllm"].older == ("vllm",)
    assert entries["start-on-boot.old-wsl"].older == ("wsl",)


@pytest.mark.parametrize(("host", "kind"), [("win11-pro-1gpu", "windows"), ("server2025-2xh100", "server")])
def test_a_new_line_of_windows_is_unverified_on_every_path_and_says_up_to_which_it_was_checked(
    host: str, kind: str
) -> None:
    facts = expand(find(host))[0]
    answer = facts.answer("OperatingSystem")
    assert isinstance(answer, tuple)
    os = replace(answer[0], state={**answer[0].state, "build": 30000})
    newer = replace(facts, resources={**facts.resources, "OperatingSystem": (os,)})
    for path in assess(HostFacts(newer)).paths:
        told = [r.observed for r in path.every_reason if r.code == f"{path.path}.windows-unlisted"]
        assert "newer than winhost knows (checked up to build" in "".join(told), path.path
        assert path.verdict in (Verdict.UNVERIFIED, Verdict.UNSUPPORTED)
        deciding = [r for r in path.every_reason if decides(r)]
        ended = {kind: Version("30000")}
        assert [
            r.code for r in deciding if find_unchecked_version((catalogue.evidence()[key] for key in r.evidence), ended)
        ] == []


def test_a_new_line_that_somebody_chooses_is_said_to_be_newer() -> None:
    assert describe_newer_line("k3s", "v1.36.9+k3s1") is None
    assert "k3s v1.40.0+k3s1, newer than winhost knows (checked up to v1.36" in (
        describe_newer_line("k3s", "v1.40.0+k3s1") or ""
    )
    assert describe_newer_line("Ubuntu", "28.04") is not None


def test_no_evidence_of_an_older_line_decides_a_verdict() -> None:
    """On WSL 3, and with a vLLM that nobody looked into."""
    for stated in ({"wsl": Version("3.0.1")}, {"vllm": Version("0.99.0"), "wsl": Version("2.7.14")}):
        judged = list(assess(HostFacts(FACTS), stated=stated).path("wsl2").every_variant)
        deciding = [reason for each in judged for reason in each.every_reason if decides(reason)]
        deciding += [
            reason for each in judged for told in each.capabilities for reason in told.reasons if decides(reason)
        ]
        assert deciding
        short = [
            r.code
            for r in deciding
            if find_unchecked_version(
                (catalogue.evidence()[key] for key in r.evidence), stated, catalogue.entry(r.code).older
            )
        ]
        assert short == []
        trusted = [told for each in judged for told in each.capabilities if told.verdict is Verdict.SUPPORTED]
        assert [
            t.capability
            for t in trusted
            if find_unchecked_version((catalogue.evidence()[key] for key in t.grounds), stated)
        ] == []


def decides(reason: Finding) -> bool:
    return reason.severity in (Severity.UNSUPPORTED, Severity.DEGRADED)


def verdicts(facts: Facts, wsl: str) -> list[tuple[str, Verdict, list[Verdict]]]:
    judged = assess(HostFacts(facts), stated={"wsl": Version(wsl)}).path("wsl2").every_variant
    return [(each.path, each.verdict, [told.verdict for told in each.capabilities]) for each in judged]


@pytest.mark.parametrize("newer", ["2.7.99", "2.99.0"])
def test_a_newer_build_of_a_known_line_stays_as_judged(newer: str) -> None:
    assert verdicts(FACTS, newer) == verdicts(FACTS, "2.7.14")


def test_what_names_versions_of_software_or_windows_is_read() -> None:
    """A range that is written in another way would never end."""
    unread = []
    symptoms()  # evidence that is written within them counts once they are read
    for key, piece in catalogue.evidence().items():
        for part in re.split(r"[,;] ", piece.holds):
            named = re.match(
                r"(WSL|vLLM|(nvidia-container-)?toolkit|drivers?|Ubuntu|k3s|Windows|Azure Local) [Rv]?\d", part
            )
            if named and not NOT_RANGES.fullmatch(part) and not spans(part):
                unread.append((key, part))
    assert unread == []
