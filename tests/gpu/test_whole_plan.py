"""One plan on a Linux with a GPU, from detect to the comparison after its rollback."""

import os
from pathlib import Path

import pytest

from tests.gpu.whole_plan import Given, whole_plan

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]

TRANSCRIPT = "WINHOST_GPU_TRANSCRIPT"


def test_a_plan_is_carried_out_and_undone(tmp_path: Path) -> None:
    given = Given.from_environment()
    if lacking := given.lacking():
        pytest.skip(f"it takes {', '.join(lacking)}")
    done = whole_plan(given, Path(os.environ.get(TRANSCRIPT) or tmp_path / "transcript.json"))
    assert done.failed == []
