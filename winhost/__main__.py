"""`winhost` and `python -m winhost`."""

import sys


def main() -> None:
    """The command line. The one place that decides what a user sees of an error."""
    from winhost.cli import run

    sys.exit(run())


if __name__ == "__main__":
    main()
