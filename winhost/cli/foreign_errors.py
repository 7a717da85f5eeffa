"""Errors of click and of the operating system, and defects of winhost, as errors that a user sees."""

import traceback
from pathlib import Path

import click

from winhost.cli.streams import is_closed_pipe
from winhost.core.answers import MissingFact
from winhost.model.errors import UsageError, WinhostError, visible

# Wrong about the path, not about the computer: another path may do.
_OF_THE_PATH = (FileNotFoundError, NotADirectoryError, IsADirectoryError, FileExistsError, PermissionError)


def from_click(error: click.ClickException) -> UsageError:
    """Words that click does not take."""
    message = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    return UsageError(
        "WrongUsage",
        what=visible(message[:1].lower() + message[1:]),
        hint=f"How it is used: {context.command_path} --help" if context else None,
    )


def from_missing_fact(missing: MissingFact) -> WinhostError:
    """A fact that was not read, and without which a command cannot go on."""
    from winhost.connect.wire_errors import error_of  # errors that users make do without

    return error_of(missing) or WinhostError(
        "NotKnown",
        what=visible(str(missing)),
        meaning="This command needs it, and winhost never guesses.",
        hint="Read the host again, as an administrator: winhost detect HOST -o facts",
    )


def as_winhost_error(error: Exception) -> WinhostError:
    """Whatever went wrong with one host, as an error that can be shown beside the results of others.

    Raises the error itself where nobody reads our output any more, which is no matter of a host.
    """
    if isinstance(error, WinhostError):
        return error
    if isinstance(error, MissingFact):
        return from_missing_fact(error)
    if is_closed_pipe(error):
        raise error
    if isinstance(error, OSError):
        return from_os_error(error)
    return _defect(error)


def _defect(error: Exception) -> WinhostError:
    """winhost is at fault, while it works on one of several hosts: the others' results must not be lost for it.

    Neither its message nor its frames are kept, which may hold anything: only its type, and file and line.
    """
    last = traceback.extract_tb(error.__traceback__)[-1]
    return WinhostError(
        "Defect",
        what=f"winhost itself failed ({type(error).__name__} at {Path(last.filename).name}:{last.lineno})",
        meaning="This is a bug in winhost. What it changed before that is in the journal: winhost runs",
        hint="Please report it with this message and the facts of the host: winhost detect HOST -o FOLDER",
    )


def from_os_error(error: OSError) -> WinhostError:
    """An error of the operating system: a wrong path is the user's to mend, a full disk or no memory is not."""
    why = error.strerror or str(error)
    file = str(error.filename) if error.filename is not None else None
    if file is not None and isinstance(error, _OF_THE_PATH):
        return UsageError(
            "UnusablePlace",
            what=f"{visible(file)} cannot be used ({why})",
            hint="Check the path and its permissions, or name another one.",
        )
    where = f" {visible(file)}" if file else ""
    return WinhostError("SystemFault", what=f"the operating system refused{where}: {why}")
