"""`winhost` and `python -m winhost`."""

import os
import sys

STOPPED = 130


def main() -> None:
    """The command line. The one place that decides what a user sees of an error."""
    from winhost.cli import run

    code = run()
    if code == STOPPED:  # hosts that are still being read change nothing: Python would wait for each of them
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
