"""The Windows side of a dual boot, by the command line over a real connection to a simulated host."""

from pathlib import Path

import pytest

from tests.cli.conftest import Line

KEYS = ("--set", "keys.by=typed", "--set", "keys.last_group=env:WINHOST_LAST_GROUP")
PLAN = ("plan", "desk-01", "--path", "dual-boot", "--allow-unverified")


@pytest.fixture(autouse=True)
def last_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINHOST_LAST_GROUP", "888888")


@pytest.mark.costly
def test_it_is_planned_applied_verified_and_given_back(line: Line, lab: object) -> None:
    said = line(*PLAN, *KEYS, "--set", "linux=100GiB", "-o", "plan.json", "--debug")
    assert said.code == 0, said.err
    assert "Ubuntu's partition" in said.out
    assert line("apply", "plan.json", "--yes").code == 2, "without the approval for data"
    applied = line("apply", "plan.json", "--accept", "data", "--yes", "--debug")
    assert applied.code == 0, applied.err
    assert line("verify", "plan.json").code == 0
    detected = line("detect", "desk-01", "-o", "facts", "--debug")
    reported = line("report", "facts/desk-01.json", "-o", "report.html")
    assert (detected.code, reported.code) == (0, 0)
    run = line("runs", "-o", "name").out.strip()
    back = line("rollback", run, "--accept", "data", "--yes")
    assert back.code == 0, back.err
    texts = [path.read_text("utf-8", "replace") for path in Path().rglob("*") if path.is_file()]
    texts += [each.out + each.err for each in (said, applied, detected, reported, back)]
    assert not [text for text in texts if "888888" in text or "777777-888888" in text]


def test_without_a_proof_of_the_keys_it_says_how_to_give_one(line: Line, lab: object) -> None:
    said = line(*PLAN)
    assert said.code == 3
    assert "keys.by=active-directory" in said.err
