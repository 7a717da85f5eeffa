"""A test that hangs or takes its worker with it fails, and the run goes on to all others and to its summary."""

import re
from pathlib import Path

import pytest

from tests.house.inner_suite import run_suite

SUITE = {
    "test_deep.py": """
        import pytest

        def down(depth):
            try:
                down(depth + 1)
            except RecursionError:
                while True:
                    down(depth)

        @pytest.mark.timeout(2)
        def test_that_never_comes_up(): down(0)
        def test_after(): pass
    """,
    "test_caught.py": """
        import time

        import pytest

        @pytest.mark.timeout(2)
        def test_that_catches_everything():
            while True:
                try:
                    time.sleep(600)
                except BaseException:
                    pass
        def test_after(): pass
    """,
    "test_exit.py": """
        import os

        def test_before(): pass
        def test_that_kills_its_worker(): os._exit(3)
        def test_after(): pass
    """,
    "test_repr.py": """
        class Endless:
            def __repr__(self): return repr(self)

        def test_that_shows_what_cannot_be_shown():
            assert Endless() == Endless()
        def test_after(): pass
    """,
    **{f"test_other_{number}.py": "def test_after(): pass\n" for number in range(3)},
}
FAILING = {
    "that_never_comes_up",
    "that_catches_everything",
    "that_kills_its_worker",
    "that_shows_what_cannot_be_shown",
}


@pytest.mark.costly
@pytest.mark.parametrize("workers", ["1", "2"])
def test_one_failing_test_never_ends_the_run(tmp_path: Path, workers: str) -> None:
    said = run_suite(tmp_path, SUITE, "-p", "tests.workers", "-n", workers, "--dist", "loadfile", "-rf")
    assert said.returncode == 1, said.stdout + said.stderr
    assert "INTERNALERROR" not in said.stdout
    assert set(re.findall(r"^FAILED .*::test_(\w+)", said.stdout, re.MULTILINE)) == FAILING
    assert f"= {len(FAILING)} failed, 8 passed in " in said.stdout
    assert "test_deep.py" in said.stderr, "where it hangs"
