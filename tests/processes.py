"""Programs that tests start: each ends with its test, whatever the test came to."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

# Nothing fails because a machine is slow: a limit only ends what hangs.
PATIENCE_S = 300


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator["subprocess.Popen[Any]"]:
    """A program that ends by itself before the block does, or soon after; it is killed where the block fails."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
            process.wait(PATIENCE_S)
        finally:
            process.kill()  # Popen's own end waits for as long as the program likes


def wait_for(true: Callable[[], object]) -> None:
    """Look again and again until it is so."""
    until = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.05)


@cache
def python_of(minor: int) -> str | None:
    """Return the path of `python3.MINOR`; None for a shim of pyenv without that Python."""
    found = shutil.which(f"python3.{minor}")
    code = "import sys; print(sys.version_info[1])"
    done = found and subprocess.run([found, "-I", "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    return found if done and done.stdout.strip() == str(minor) else None


def exit_code(child: int) -> int:
    """Return the exit code of a forked child that ends by itself, by its process id."""
    until = time.monotonic() + PATIENCE_S
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise TimeoutError(f"process {child} did not end")
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(ended[1])
