"""How far a start is, and why one failed: by lines as vLLM writes them."""

from pathlib import Path
from typing import Any

import pytest

from tests.cases import read_cases
from tests.rows import each_row
from winhost.model.served import UnitState
from winhost.serving.engine_start import PHASES, StartProgress, find_symptom, start_failure

CASES: dict[str, Any] = read_cases(Path(__file__).parents[1] / "data/serving/starts.yaml")
UNIT = UnitState("winhost-engine-a.service", True, "failed", "failed", "exit-code", "enabled", 0, 0, 1, "", 3)


@pytest.mark.parametrize("case", CASES["progress"], ids=lambda case: case["says"])
def test_phases_come_in_their_order_and_none_goes_back(case: dict[str, Any]) -> None:
    progress, seen, percents = StartProgress(), [], [0]
    for line in case["log"].splitlines():
        if progress.read([line]):
            seen.append(progress.phase.name)
        percents.append(progress.percent)
    assert seen == case["phases"]
    assert percents == sorted(percents)
    assert 85 <= percents[-1] <= 100


def test_a_bar_is_as_long_as_it_is_far() -> None:
    progress = StartProgress()
    progress.read(["Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01, 1.2s/it]"])
    assert (progress.phase.name, progress.percent, progress.bar.count("█")) == ("load", 35, 7)
    assert [each.first_percent for each in PHASES] == sorted(each.first_percent for each in PHASES)


@each_row("case", CASES["failures"], ids=lambda case: case["symptom"])
def test_a_known_failure_is_told_with_its_remedy(case: dict[str, Any]) -> None:
    lines = case["log"].splitlines()
    found = find_symptom(lines)
    assert found is not None
    assert found.code == case["symptom"]
    error = start_failure("gpu-01", "org/model", UNIT, lines)
    assert found.sentence in error.what
    remedy = found.causes[0].remedy
    assert remedy
    assert remedy.do.split("\n")[0] in str(error.hint)


def test_where_the_table_knows_only_that_it_failed_the_first_error_is_shown() -> None:
    at = "(Worker pid=604) ERROR 11-23 15:50:17 [multiproc_executor.py:953] "
    lines = [f"{at}WorkerProc failed to start.", f"{at}    with safe_open(file) as f:"]
    lines += [f"{at}FileNotFoundError: No such file or directory: /opt/tiny/model.safetensors"]
    lines += ["RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"]
    error = start_failure("gpu-01", "org/model", UNIT, lines)
    assert "Its log says: FileNotFoundError: No such file or directory: /opt/tiny/model" in str(error.meaning)


def test_of_an_unknown_one_the_last_lines_are_shown() -> None:
    error = start_failure("gpu-01", "org/model", UNIT, ["first", "second", "", "third", "password=hunter22", "\x1b[2J"])
    assert "exit code 1" in error.what
    assert error.meaning == "third\npassword=***\n\\x1b[2J"
