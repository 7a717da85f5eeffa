"""The log on stderr that `-v` and `--debug` show: that of winhost's own loggers alone.

Loggers of libraries never get a handler: at DEBUG they write whole messages, and tokens of the logon.
"""

import logging
import sys
from contextlib import suppress
from datetime import datetime

import click

from winhost import __version__
from winhost.model.errors import visible

_OURS = logging.getLogger("winhost")
_LIBRARIES = ("pypsrp", "pywinrm", "paramiko", "pyspnego", "requests", "urllib3", "cryptography")


class LogLines(logging.Handler):
    """Writes a line for each record to the present stderr, which is another stream while a run goes on."""

    def emit(self, record: logging.LogRecord) -> None:
        # Whoever reads it is gone: that must end nothing.
        with suppress(OSError, ValueError):
            print(self.format(record), file=sys.stderr, flush=True)  # noqa: T201 - as one piece, from any thread


class PlainLines(logging.Formatter):
    """Formats lines so that names from a host move no cursor and begin no line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as logging calls it
        record.message = visible(record.message)
        return super().formatMessage(record)


def show_log(context: click.Context, *, debug: bool) -> None:
    """Show the log until this command ends, or the command that called it."""
    shown = _shown()
    if shown is None:
        shown, before = LogLines(logging.INFO), _OURS.level

        def hide() -> None:
            if (still_shown := _shown()) is not None:
                _OURS.removeHandler(still_shown)
            _OURS.setLevel(before)

        shown.setFormatter(PlainLines("%(message)s"))
        _OURS.addHandler(shown)
        _OURS.setLevel(logging.INFO)
        context.call_on_close(hide)
    if debug and shown.level != logging.DEBUG:
        shown.setLevel(logging.DEBUG)
        shown.setFormatter(PlainLines("%(asctime)s.%(msecs)03d %(name)s %(message)s", "%H:%M:%S"))
        _OURS.setLevel(logging.DEBUG)
        _log_versions()


def is_log_shown() -> bool:
    return _shown() is not None


def _shown() -> LogLines | None:
    return next((handler for handler in _OURS.handlers if isinstance(handler, LogLines)), None)


def _log_versions() -> None:
    import platform  # neither is needed without --debug
    from importlib.metadata import PackageNotFoundError, version  # it loads the parser of e-mail

    def version_of(library: str) -> str:
        try:
            return version(library)
        except PackageNotFoundError:
            return "unknown"

    now = datetime.now().astimezone().isoformat(timespec="seconds")
    _OURS.debug("winhost %s, Python %s, %s, %s", __version__, platform.python_version(), platform.platform(), now)
    _OURS.debug("%s", ", ".join(f"{name} {version_of(name)}" for name in _LIBRARIES))
