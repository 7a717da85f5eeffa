"""Show the log on stderr for `-v` and `--debug`, only from winhost's own loggers.

The loggers of libraries never get a handler: at DEBUG they write whole messages, including tokens of the logon.
"""

import logging
import sys
from contextlib import suppress
from datetime import datetime

import click

from winhost import __version__
from winhost.model.errors import visible

_LOGGER = logging.getLogger("winhost")
_LIBRARIES = ("pypsrp", "pywinrm", "paramiko", "pyspnego", "requests", "urllib3", "cryptography")


class LogLines(logging.Handler):
    """Writes a line for each record to the present `sys.stderr`, which a run replaces by another stream."""

    def emit(self, record: logging.LogRecord) -> None:
        # A reader that is gone must not end the command.
        with suppress(OSError, ValueError):
            print(self.format(record), file=sys.stderr, flush=True)  # noqa: T201 - as one piece, from any thread


class PlainLines(logging.Formatter):
    """Formats records without control characters, which names from a host may contain."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as logging calls it
        record.message = visible(record.message)
        return super().formatMessage(record)


def show_log(context: click.Context, *, debug: bool) -> None:
    """Show the log until the command of this context ends. debug: with messages at DEBUG, and times."""
    handler = _shown_handler()
    if handler is None:
        handler, old_level = LogLines(logging.INFO), _LOGGER.level

        def hide() -> None:
            if (current_handler := _shown_handler()) is not None:
                _LOGGER.removeHandler(current_handler)
            _LOGGER.setLevel(old_level)

        handler.setFormatter(PlainLines("%(message)s"))
        _LOGGER.addHandler(handler)
        _LOGGER.setLevel(logging.INFO)
        context.call_on_close(hide)
    if debug and handler.level != logging.DEBUG:
        handler.setLevel(logging.DEBUG)
        handler.setFormatter(PlainLines("%(asctime)s.%(msecs)03d %(name)s %(message)s", "%H:%M:%S"))
        _LOGGER.setLevel(logging.DEBUG)
        _log_versions()


def is_log_shown() -> bool:
    return _shown_handler() is not None


def _shown_handler() -> LogLines | None:
    return next((handler for handler in _LOGGER.handlers if isinstance(handler, LogLines)), None)


def _log_versions() -> None:
    import platform  # neither is needed without --debug
    from importlib.metadata import PackageNotFoundError, version  # it loads the parser of e-mail

    def version_of(library: str) -> str:
        try:
            return version(library)
        except PackageNotFoundError:
            return "unknown"

    now = datetime.now().astimezone().isoformat(timespec="seconds")
    _LOGGER.debug("winhost %s, Python %s, %s, %s", __version__, platform.python_version(), platform.platform(), now)
    _LOGGER.debug("%s", ", ".join(f"{name} {version_of(name)}" for name in _LIBRARIES))
