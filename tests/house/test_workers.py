"""A test that hangs or takes its worker with it fails, and the run goes on to all others and to its summary."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from xdist.remote import Producer

from tests.house.inner_suite import run_suite
from tests.workers import JUDGED, Scheduling
from winhost.resources import host

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


class Worker:
    """A worker as the scheduler sees it. given: numbers of tests."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="gw0")

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.given += numbers

    def shutdown(self) -> None:
        self.shutting_down = True


def test_a_worker_that_still_collects_gets_nothing_of_one_that_dies() -> None:
    """It was noted down for tests that nobody sent it, and the run ended with an internal error."""
    tests = [f"test_{file}.py::test_{number}" for file in "ab" for number in (1, 2)]
    config = SimpleNamespace(getvalue=lambda name: ["2*popen"], option=SimpleNamespace(loadscopereorder=False))
    plan = Scheduling(config, Producer("test", enabled=False))
    first, second, new = Worker(), Worker(), Worker()
    for worker in (first, second):
        plan.add_node(worker)
    for worker in (first, second):
        plan.add_node_collection(worker, tests)
    plan.schedule()
    plan.remove_node(first)
    plan.add_node(new)
    died = plan.remove_node(second)
    assert (died, new.given, plan.has_pending) == ("test_b.py::test_1", [], True)
    plan.add_node_collection(new, tests)
    plan.schedule()
    assert new.given == [1, 3]


@pytest.mark.costly
def test_workers_begin_with_different_files_and_agree_on_the_order(tmp_path: Path) -> None:
    """xdist refuses to run where they do not agree."""
    begun = """
        import os
        from pathlib import Path

        with Path(os.environ["PYTEST_XDIST_WORKER"]).open("a") as file:
            file.write(f"{__name__}\\n")

        def test_it(): pass
    """
    files = {f"suite/{name}/test_{name}.py": begun for name in ("one", "other", "third")}
    said = run_suite(
        tmp_path, {"pytest.ini": "[pytest]\ntestpaths = suite\n", **files}, "-p", "tests.workers", "-n", "3"
    )
    assert "3 passed" in said.stdout, said.stdout + said.stderr
    read = [(tmp_path / worker).read_text("utf-8").split() for worker in ("gw0", "gw1", "gw2")]
    assert sorted(names[0] for names in read) == sorted(read[0]) == ["test_one", "test_other", "test_third"]


def test_no_host_is_judged_while_tests_are_collected(pytestconfig: pytest.Config) -> None:
    """Each worker collects all files: it would be done by all of them, whatever they run."""
    assert host.property_reader.cache_info
    assert pytestconfig.stash[JUDGED] == 0
