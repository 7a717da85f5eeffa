"""The story of a reason, from the command line."""

import pytest

from tests.cli.conftest import Line
from winhost.knowledge import catalogue
from winhost.knowledge.explanation import explain


@pytest.mark.parametrize("code", ["wsl2.tcc-invisible", "nvlink.unknown", "sleep-l1.pageable"])
def test_a_story_ends_with_what_is_related(line: Line, code: str) -> None:
    told = explain(code)
    said = line("explain", code)
    _, _, related = said.out.partition("  Related:\n")
    assert [row.partition(":")[0].strip() for row in related.splitlines()] == list(told.related)
    assert line("explain", code, "--json").result["related"] == list(told.related)


SAYS = [(code, words) for code, entry in catalogue.own_entries().items() for words in entry.says]


@pytest.mark.parametrize(("code", "words"), SAYS)
def test_a_line_of_a_log_finds_what_it_is_about(line: Line, code: str, words: str) -> None:
    said = line("explain", f"(EngineCore pid=4522) ERROR 11-22 10:55:07 [core.py:1231] RuntimeError: {words}, and more")
    assert said.code == 0
    assert said.out.startswith(f"{code}\n")
    assert f"  In logs: {words}\n" in said.out


def test_words_that_no_failure_has_are_no_code(line: Line) -> None:
    assert line("explain", "RuntimeError: something else").code == 2


def test_evidence_says_how_sure_it_makes(line: Line) -> None:
    said = line("explain", "wsl2.tcc-invisible")
    for evidence in explain("wsl2.tcc-invisible").evidence:
        assert f"Evidence {evidence.id} ({evidence.kind}, confidence {evidence.confidence}," in said.out


def test_what_is_listed_can_be_explained(line: Line) -> None:
    for row in line("explain", "--list", "kv-", "--json").results:
        assert line("explain", row["code"]).code == 0
