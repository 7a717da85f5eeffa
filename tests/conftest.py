"""Fixtures and hooks of all tests."""

import gc
import logging
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from socketserver import BaseServer

import pytest

from tests.processes import PATIENCE_S

pytest_plugins = ["tests.costly", "tests.workers"]

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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Freeze the objects of all tests, so that garbage collection does not scan them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(100_000)  # as commands have it
        gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _servers_end() -> Iterator[None]:
    """A server that is closed while it runs looks at its socket again and again, and takes a processor from all tests
    that follow in this process.
    """
    yield
    for thread in threading.enumerate():
        server = getattr(getattr(thread, "_target", None), "__self__", None)
        if isinstance(server, BaseServer) and server.fileno() < 0:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"{server.RequestHandlerClass} was closed and never shut down"
