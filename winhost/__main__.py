"""`winhost` and `python -m winhost`."""

import atexit
import gc
import os
import sys
import threading
from contextlib import suppress

STOPPED = 130


def main() -> None:
    """The command line. The one place that decides what a user sees of an error."""
    # A command makes modules, classes and facts, which stay until its end: looking for garbage among them 100 times
    # was a quarter of the CPU time of `assess`.
    gc.set_threshold(100_000)
    from winhost.cli import run

    code = run()
    with suppress(OSError, ValueError):  # a stream that is closed, or full: Python says so as it ends
        _leave(code)
    sys.exit(code)


def _leave(code: int) -> None:
    """End the process without taking modules and classes apart one by one, which is a twentieth of `assess`.

    Where threads still work, Python waits for them; but hosts that are still read when a user stops change nothing.
    """
    if code != STOPPED:
        if threading.active_count() > 1:
            return
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
