"""Tests of winhost known."""

from tests.cli.conftest import Line
from winhost.knowledge.versions import subjects, table


def test_it_lists_every_subject_with_its_range_and_its_day(line: Line) -> None:
    listed = {each["name"]: each for each in line("known", "--json").results}
    assert listed.keys() == subjects().keys()
    for name, subject in subjects().items():
        told = listed[name]
        assert (told["first"], told["newest"]) == (subject.first, subject.newest)
        assert told["checked"] == str(table()["checked"])
        assert told["statements"], name


def test_each_statement_says_up_to_which_version_and_on_which_day_it_was_checked(line: Line) -> None:
    (wsl,) = line("known", "WSL", "-o", "json").results
    statements = {each["id"]: each for each in wsl["statements"]}
    assert statements["wsl-bridge-needs-switch"]["newest"] == "2.9"
    assert statements["wsl-four-gpus"]["newest"] == "2.6.2", "a report of one version ends with it"
    assert statements["wsl-nat"]["newest"] is None, "WSL 2 is a kind of WSL, and no version"
    assert all(each["seen"] and each["source"] and each["holds"] for each in statements.values())


def test_people_get_the_same_as_a_table(line: Line) -> None:
    said = line("known", "wsl").out
    assert "known from 2.0.0 to 2.9.12" in said
    assert "wsl-bridge-needs-switch" in said
    assert {"windows", "vllm", "k3s"} <= set(line("known").out.split())
    assert line("known", "-o", "name").out.split() == list(subjects())


def test_wide_has_each_claim_and_its_source(line: Line) -> None:
    told = " ".join(line("known", "k3s", "-o", "wide").out.split())
    assert "claims source" in told
    assert "k3s-io/k3s" in told
    assert "below that" in line("known", "-o", "wide").out


def test_an_unknown_subject_is_answered_with_those_that_there_are(line: Line) -> None:
    said = line("known", "wls")
    assert said.code == 2
    assert "did you mean 'wsl'" in said.err
    assert "toolkit" in said.err
