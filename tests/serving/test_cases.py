"""Which profile is chosen, and what stands in it: tests/data/profiles/cases.yaml."""

from pathlib import Path
from typing import Any

import pytest

from tests.cases import read_cases
from tests.rows import each_row
from tests.serving.situations import ROOT, host_of, workload_of
from winhost.model.errors import Exit, WinhostError
from winhost.model.units import GiB
from winhost.serving.choice import Served, serving

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
        "doubts": sum(cause.unverified is not None for cause in served.because),
        "has": [line for line in wanted.get("has", ()) if line in lines],
        "lacks": [name for name in wanted.get("lacks", ()) if name not in names],
        "unverified": [line.name for line in served.lines if line.unverified],
        "left_out": [line.name for line in served.left_out],
        "shm": served.shared_memory // GiB,
        "kept": served.lost and served.lost.kept,
        "level": served.level,
        "rest": served.rest and served.rest.rung,
        "soon": served.rest and served.rest.kept,
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
