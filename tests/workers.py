"""Distributes files to xdist's workers, and replaces a worker that hangs or dies, so that the run always goes on."""

import faulthandler
import os
import sys
from contextlib import suppress
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

STDERR = pytest.StashKey[int]()
JUDGED = pytest.StashKey[int]()
"""Verdicts that were made while files were collected: what a module does as it is imported, each worker does."""
INNER = ("tests/house/test_costly.py", "tests/house/test_workers.py")  # they run suites and parse nothing
DEBIAN = ("test_debian.py", "test_way_in.py", "test_wsl.py", "test_wsl_job.py")

# Few tests that each take long: whoever began one of these files last would keep all others waiting.
LONG = (
    "the Debian",
    "the tree",
    "tests/gateway/test_gateway.py",
    "tests/connect/test_slow.py",
    "tests/cli/test_pages.py",
    "tests/cli/test_up.py",
    "tests/engine/test_crashes.py",
    "tests/gateway/test_bodies.py",
    "tests/cli/test_streams.py",
    "tests/render/test_report_in_a_browser.py",
    "tests/engine/test_killed.py",
    "tests/engine/test_wsl2.py",
    "tests/cli/test_main_job.py",
    "tests/cli/test_wsl2.py",
    "tests/engine/test_two_machines.py",
    "tests/connect/test_ssh.py",
    "tests/recipes/test_hostile_recipes.py",
    "tests/linux/test_by_hand.py",
)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)  # while a test runs, 2 is captured


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[STDERR])


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Each worker begins elsewhere in the tree: in a fresh clone all would compile each file at the same time."""
    config = session.config
    if not hasattr(config, "workerinput") or config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    worker, workers = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
    (tests,) = (config.rootpath / path for path in config.args)
    paths = sorted(str(path) for path in tests.iterdir() if path.is_dir() or path.name.startswith("test_"))
    first = len(paths) * worker // workers
    config.args = paths[first:] + paths[:first]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.parts)  # xdist wants one order in all workers


def pytest_collection_finish(session: pytest.Session) -> None:
    kept = getattr(
        sys.modules.get("winhost.resources.host"), "property_reader", None
    )  # what answers about a host rest on
    session.config.stash[JUDGED] = kept.cache_info().misses if kept else 0


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """End a worker that hangs: an exception could be caught by the test, or be raised inside pytest itself, or wait for
    a call into C. Without xdist there is one process, and pytest-timeout raises one.
    """
    if not hasattr(item.config, "workerinput"):
        return None
    faulthandler.dump_traceback_later(settings.timeout, exit=True, file=item.config.stash[STDERR])
    item.cancel_timeout = faulthandler.cancel_dump_traceback_later  # type: ignore[attr-defined]
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(report: pytest.TestReport) -> None:
    report.longrepr = f"{report.longrepr}: the worker died, or the test met its time limit (then its stacks are above)"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are processors: many tests wait for programs that others of the machine run for them."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None


class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # it brings no types
    """A file stays in one process. So do those that share the one Debian, which apart would only wait for each other,
    and those that look through the parsed tree, which takes seconds to parse.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        if (file.startswith("tests/house/") and file not in INNER) or file == "tests/cli/test_advice.py":
            return "the tree"
        return "the Debian" if file.removeprefix("tests/linux/") in DEBIAN else file

    def _assign_work_unit(self, node: Any) -> None:
        if first := next((file for file in LONG if file in self.workqueue), None):
            self.workqueue.move_to_end(first, last=False)
        with suppress(OSError):  # the worker has just died: remove_node gives the work to another
            super()._assign_work_unit(node)

    def _reschedule(self, node: Any) -> None:
        if node not in self.registered_collections:
            return  # a new worker in the place of a dead one: it gets work once it has collected
        super()._reschedule(node)
        # A worker begins a test when it knows the next one: one that has a single test would wait for ever.
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)

    def remove_node(self, node: Any) -> str | None:
        """The test that ran as the worker died, if any. Unlike xdist's own, it is not run again: it may do the same."""
        work = self.assigned_work.pop(node)
        files = {file: tests for file, tests in work.items() if not all(tests.values())}
        if not files:
            return None
        running = next(iter(files.values()))
        died = next(test for test, done in running.items() if not done)
        running[died] = True
        self.workqueue.update({file: tests for file, tests in files.items() if not all(tests.values())})
        for other in self.nodes:
            self._reschedule(other)
        return died
