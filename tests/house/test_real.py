"""`make real` says of each part whether it ran, and passes for none that it left out where it had to run."""

import re
from pathlib import Path

import pytest

from tests.house.tree import ROOT
from tests.real import PARTS, Result, read

HERE = Path(__file__)
SUITES = "<testsuites><testsuite>{}</testsuite></testsuites>"
GOOD, BAD = "<testcase/>", "<testcase><failure/></testcase>"
LEFT_OUT = '<testcase><skipped message="no browser"/></testcase>'


@pytest.mark.parametrize(
    ("cases", "code", "required", "verdict"),
    [
        ([GOOD, GOOD], 0, True, "ran"),
        ([GOOD, BAD], 1, False, "FAILED"),
        ([GOOD], 2, False, "FAILED"),
        ([], 5, False, "FAILED"),
        ([GOOD, LEFT_OUT], 0, True, "FAILED: skipped, and required here"),
        ([LEFT_OUT], 0, True, "FAILED: skipped, and required here"),
        ([GOOD, LEFT_OUT], 0, False, "ran in part"),
        ([LEFT_OUT], 0, False, "skipped"),
    ],
)
def test_a_part_ran_or_says_that_it_did_not(
    cases: list[str], code: int, required: bool, verdict: str, tmp_path: Path
) -> None:
    report = tmp_path / "report.xml"
    report.write_text(SUITES.format("".join(cases)))
    assert read(report, code, 1.0).verdict(required) == verdict


def test_why_is_said_once(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(SUITES.format(LEFT_OUT * 3))
    assert read(report, 0, 1.0) == Result(0, 0, 3, 1.0, ("no browser",))


def test_its_tests_are_there() -> None:
    for part in PARTS.values():
        assert [test for test in part.tests if test.startswith("tests/") and not (ROOT / test).exists()] == []


def test_what_only_it_runs_is_in_a_part() -> None:
    covered = {ROOT / test for part in PARTS.values() if "not real" not in part.marks for test in part.tests}
    leaves_out = re.compile(r"mark\.real")
    found = [path for path in (ROOT / "tests").rglob("test_*.py") if leaves_out.search(path.read_text("utf-8"))]
    assert [path for path in found if path != HERE and not {path, *path.parents} & covered] == []
