"""What all tests share."""

import gc
import logging
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["tests.costly"]

# Run in the background, Ctrl-C is ignored by us and all that we start: tests of it would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A test that fails prints what winhost asked of its hosts. Libraries' loggers stay as they are: theirs is too much.
logging.getLogger("winhost").setLevel(logging.DEBUG)

# Some machines set it: each of the hundreds of winhost processes that tests start would compile winhost for itself.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A journal is on disk before anything is done: thousands of runs wait for a disk most of the time, unless it is memory.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

DEBIAN = ("test_debian.py", "test_way_in.py", "test_wsl.py", "test_wsl_job.py")

# Few tests that each take long: whoever began one of these files last would keep all others waiting.
LONG = (
    "the Debian",
    "tests/engine/test_crashes.py",
    "tests/cli/test_streams.py",
    "tests/render/test_report_in_a_browser.py",
    "tests/engine/test_killed.py",
    "tests/engine/test_wsl2.py",
    "tests/cli/test_main_job.py",
    "tests/cli/test_wsl2.py",
    "tests/engine/test_two_machines.py",
    "tests/connect/test_ssh.py",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What ten thousand tests are made of stays until the end: nobody looks through it for garbage again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are processors: many tests wait for programs that others of the machine run for them."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file stays in one process; those that share the one Debian, too: apart they would only wait for each other."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # it brings no types
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            return "the Debian" if file.removeprefix("tests/linux/") in DEBIAN else file

        def _assign_work_unit(self, node: Any) -> None:
            if first := next((file for file in LONG if file in self.workqueue), None):
                self.workqueue.move_to_end(first, last=False)
            super()._assign_work_unit(node)

    return Scheduling(config, log) if config.getvalue("dist") == "loadfile" else None
