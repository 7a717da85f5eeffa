"""Which profile is chosen, and what stands in it: the case of each row, and tests/data/profiles/cases.yaml.

The `case` of a row changes the plain situation of its file (PLAIN): `host` (an example host, or a change of one),
`model`, further `models`, `versions`, `needs`, `kv_mirror`; `sets` is the text of a computed line, of which `…` may
stand for the end. `unless` lists changes of the case, by each of which the row no longer holds; without it that is the
plain situation. null: as in the plain one.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.cases import read_cases
from tests.rows import each_row
from tests.serving.situations import ROOT, host_of, workload_of
from winhost.findings import condition
from winhost.findings.condition import Ask, ConditionResult, When
from winhost.model.errors import Exit, WinhostError
from winhost.model.reason import Severity
from winhost.model.units import GiB
from winhost.serving.choice import Served, serving
from winhost.serving.profile import NAMES, Cause, ProfileRow, profile, rows

CASES: dict[str, Any] = read_cases(ROOT / "tests/data/profiles/cases.yaml")
KEYS = {
    "host",
    "linux",
    "path",
    "example",
    "models",
    "versions",
    "needs",
    "availability",
    "kv_mirror",
    "named",
    "say",
    "refused",
}


def said(served: Served, wanted: dict[str, Any]) -> dict[str, Any]:
    """What is said of everything that a case asks for."""
    lines = {line.text for line in served.lines}
    names = {line.partition("=")[0] for line in lines}
    answers = {
        "profile": served.profile,
        "because": [key for cause in served.because for key in cause.evidence],
        "doubts": sum(cause.lacks is not None for cause in served.because),
        "has": [line for line in wanted.get("has", ()) if line in lines],
        "lacks": [name for name in wanted.get("lacks", ()) if name not in names],
        "unverified": [line.name for line in served.lines if line.reason.lacks],
        "left_out": [line.name for line in served.left_out],
        "shm": served.shared_memory // GiB,
        "kept": served.lost and served.lost.kept,
        "level": served.level,
        "rest": served.asleep and served.asleep.rung,
        "soon": served.asleep and served.asleep.kept,
    }
    return {key: answers[key] for key in wanted}


@pytest.mark.costly
@each_row("name", CASES)
def test_a_profile_is_what_the_situation_takes(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    assert case.keys() <= KEYS
    facts, workload = host_of(case, tmp_path), workload_of(case, tmp_path)
    if "refused" in case:
        with pytest.raises(WinhostError) as refused:
            serving(facts, workload, case.get("named"), path=case.get("path"))
        error = refused.value
        assert (error.code, error.exit_code) == (case["refused"]["error"], Exit.REFUSED)
        text = f"{error.what}\n{error.meaning}\n{error.hint}"
        assert [words for words in case["refused"]["says"] if words not in text] == []
        return
    models = {
        served.model: served for served in serving(facts, workload, case.get("named"), path=case.get("path")).models
    }
    assert {model: said(models[model], wanted) for model, wanted in case["say"].items()} == case["say"]


# --- The case of each row -------------------------------------------------------------------------------------------

ROW_KEYS = {"host", "model", "models", "versions", "needs", "kv_mirror", "named"}
SMALL = {"parameters": "7.6B", "context": 4096, "shape": {"layers": 28, "kv_heads": 4, "head_dim": 128}}
ASLEEP = {**SMALL, "state": "sleeping"}
WSL, LINUX = {"host": "win11-pro-2xl20-wddm"}, {"linux": ["ubuntu-2xh100"]}
PLAIN: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "vllm": (WSL, SMALL),
    "wsl2": (WSL, SMALL),
    "bare-metal": (LINUX, SMALL),
    "dda": ({"host": "server2025-4xh200", "path": "dda"}, SMALL),
    "no-sleep": (WSL, ASLEEP),
    "wsl2-no-sleep": (WSL, ASLEEP),
}
"""By file, the host and the model that the `case` of a row changes."""


def in_situation(code: str, change: Mapping[str, Any], folder: Path) -> Served:
    """The first model of the plain situation with a change."""
    change = {key: value for key, value in change.items() if value is not None}
    folder.mkdir()
    at, small = PLAIN[code.split(".")[1]]
    if "host" in change:
        at = {"host": change["host"]} | ({"path": "bare-metal"} if at is LINUX else {})
    changes = {"chat": change.get("model", {}), **change.get("models", {})}
    models = {
        name: {key: value for key, value in {**small, **changed}.items() if value is not None}
        for name, changed in changes.items()
    }
    written = {
        "models": models,
        "versions": {"vllm": "0.33.0", **change.get("versions", {})},
        **{key: change[key] for key in ("needs", "kv_mirror") if key in change},
    }
    facts, asked = host_of(at, folder), workload_of(written, folder)
    return serving(facts, asked, change.get("named"), path=at.get("path")).models[0]


def check_set(row: ProfileRow | Cause, served: Served) -> None:
    """Check that a row is set with its value, or that it is why the model does not sleep, and nothing is in doubt."""
    if isinstance(row, Cause):
        (cause,) = (each for each in served.because if each.code == row.code)
        assert (cause.severity, cause.lacks) == (Severity.DEGRADED, None)
        return
    (line,) = (each for each in served.lines if each.reason.code == row.code)
    assert (line.reason.severity, line.reason.lacks) == (Severity.NOTE, None)
    if "$" not in str(row.value):
        assert line.value == row.value
        return
    assert row.case is not None
    begin, cut, _ = row.case["sets"].partition("…")
    assert line.text.startswith(begin) if cut else line.text == begin, line.text


def test_no_two_rows_have_one_code() -> None:
    for name in NAMES:
        codes = [row.code for row in (*profile(name).rows, *profile(name).chosen)]
        assert len(codes) == len(set(codes)), name


def holds(code: str, change: Mapping[str, Any], folder: Path) -> bool:
    served = in_situation(code, change, folder)
    reasons = (*served.because, *(line.reason for line in (*served.lines, *served.left_out)))
    return code in [reason.code for reason in reasons]


def case_of(row: ProfileRow | Cause) -> dict[str, Any]:
    assert row.case is not None, "the row has no case"
    assert row.case.keys() <= {*ROW_KEYS, "sets", "unless"}
    return {key: value for key, value in row.case.items() if key in ROW_KEYS}


def others(row: ProfileRow | Cause) -> list[dict[str, Any]]:
    """The case with each change of `unless`, or the plain situation."""
    case = case_of(row)
    return [{**case, **change} for change in (row.case or {}).get("unless", [dict.fromkeys(case)])]


@pytest.mark.costly
@each_row("code", rows)
def test_a_row_is_set_in_its_case_and_not_in_those_that_differ(code: str, tmp_path: Path) -> None:
    row = rows()[code]
    check_set(row, in_situation(code, case_of(row), tmp_path / "case"))
    for number, other in enumerate(others(row) if row.when else ()):
        assert not holds(code, other, tmp_path / str(number)), f"it holds all the same: {other}"


# A request that differs in this condition alone is refused before any profile is looked at.
REFUSED_BEFORE = {
    ("profile.vllm.kv-tiers", "vllm"),
    ("profile.wsl2.pinned-on-request", "backs_up"),
    ("profile.wsl2.pinned-on-request", "kernel"),
    ("profile.wsl2-no-sleep.pinned-on-request", "vllm"),
}


@pytest.mark.costly
@each_row("code", rows)
def test_without_any_of_its_conditions_a_row_would_hold_in_a_case_that_differs(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All causes have the condition `sleeps`, which another test holds: what else they ask is of models that sleep."""
    row, evaluate = rows()[code], condition.evaluate
    held_elsewhere = {"sleeps"} if isinstance(row, Cause) else set()
    for question in row.when.keys() - held_elsewhere:
        if (code, question) in REFUSED_BEFORE:
            continue

        def without(when: When, ask: Ask, dropped: str = question) -> ConditionResult:
            if when != row.when:
                return evaluate(when, ask)
            found = evaluate({key: wanted for key, wanted in when.items() if key != dropped}, ask)
            return replace(found, seen={dropped: (), **found.seen})

        monkeypatch.setattr(condition, "evaluate", without)
        folders = (tmp_path / f"{question}-{number}" for number in count())
        assert any(holds(code, other, next(folders)) for other in others(row)), f"{question} rules out no case"
