"""The recorder that compares two states of winhost records answers, and sees what is different between them."""

import json
import shutil
from pathlib import Path

from tests.outputs import answered, differences, record

KINDS = {"assess", "assess-full", "plan", "serve-profile", "explain", "explain-code", "explain-symptom"}
KINDS |= {"explain-with-facts", "lint-serve", "lint-docker-daemon", "lint-cdi", "lint-wslconfig", "lint-wslconf"}
KINDS |= {"lint-autoinstall"}
MEANT = {"lint-serve": {"fields": {"findings.*.code": "findings.*.name"}, "values": {"findings.*.name": {"a": "b"}}}}


def test_every_kind_is_recorded_and_each_difference_is_found(tmp_path: Path) -> None:
    codes = record(tmp_path / "old", most=8)
    assert {kind for kind, _ in codes} == KINDS
    assert {kind for (kind, code) in codes if code in (0, 1)} == KINDS, "an error is no answer"
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    assert differences(tmp_path / "old", tmp_path / "new", {}) == {}
    seeded = {"old": {"code": "a", "line": 1}, "new": {"name": "b", "line": 1}}
    for folder, finding in seeded.items():
        line = {"command": ["lint"], "code": 0, "out": {"schema": "1", "results": [{"findings": [finding]}]}}
        (tmp_path / folder / "lint-serve.jsonl").write_text(json.dumps(line), "utf-8")
    found = differences(tmp_path / "old", tmp_path / "new", {})
    assert set(found) == {("lint-serve", "findings.*.code"), ("lint-serve", "findings.*.name")}
    assert differences(tmp_path / "old", tmp_path / "new", MEANT) == {}


def test_an_error_is_recorded_as_one() -> None:
    told = answered(("lint", "wslconf", "nowhere", "--json"))
    assert (told["code"], told["out"]["results"][0]["error"]["exit_code"]) == (2, 2)
