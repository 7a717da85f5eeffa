"""`winhost` and `python -m winhost`."""

import gc
import os
import sys

STOPPED = 130


def main() -> None:
    """The command line. The one place that decides what a user sees of an error."""
    # A command makes modules, classes and facts, which stay until its end: looking for garbage among them 100 times,
    # and again when the process ends, was a quarter of the CPU time of `assess`.
    gc.set_threshold(100_000)
    try:
        from winhost.cli import run

        code = run()
        if code == STOPPED:  # hosts that are still being read change nothing: Python would wait for each of them
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)
        sys.exit(code)
    finally:
        gc.freeze()


if __name__ == "__main__":
    main()
