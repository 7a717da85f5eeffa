"""What the command line and the system refuse, as errors like our own."""

import traceback
from dataclasses import dataclass
from pathlib import Path

import click

from winhost.cli.streams import is_closed_pipe
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.facts import MissingFact

# What is wrong with the place, and not with the machine: name another one.
_OF_THE_PLACE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, FileExistsError, PermissionError)


@dataclass(eq=False)
class WrongUsage(UsageError):
    """Words that click does not take."""

    error: click.ClickException

    @property
    def what(self) -> str:
        message = " ".join(self.error.format_message().split())
        return visible(message[:1].lower() + message[1:])

    @property
    def hint(self) -> str | None:
        context = getattr(self.error, "ctx", None)
        return f"How it is used: {context.command_path} --help" if context else None


@dataclass(eq=False)
class UnusablePlace(UsageError):
    """A file or folder that was named, by a word or a variable, and that cannot be read or written."""

    file: str
    why: str

    @property
    def what(self) -> str:
        return f"{visible(self.file)} cannot be used ({self.why})"

    @property
    def hint(self) -> str:
        return "Name another place, or make this one ready for this account, and say it again."


@dataclass(eq=False)
class SystemFault(WinhostError):
    """The machine that winhost runs on cannot do it: a full disk, no memory, no free port."""

    why: str
    file: str | None = None

    @property
    def what(self) -> str:
        where = f" {visible(self.file)}" if self.file else ""
        return f"the system that winhost runs on refused{where}: {self.why}"


@dataclass(eq=False)
class NotKnown(WinhostError):
    """A fact without which a command cannot go on, and that was not read."""

    missing: str

    @property
    def what(self) -> str:
        return visible(self.missing)

    @property
    def meaning(self) -> str:
        return "This command cannot do without it, and winhost never guesses."

    @property
    def hint(self) -> str:
        return "Read the host again, as an administrator: winhost detect"


@dataclass(eq=False)
class Defect(WinhostError):
    """winhost is at fault, while it works on one of several hosts: the others' results must not be lost for it.

    Neither its words nor its frames are kept, which may hold anything: only what it is, and where.
    """

    kind: str
    place: str

    @property
    def what(self) -> str:
        return f"winhost itself failed ({self.kind} at {self.place})"

    @property
    def meaning(self) -> str:
        return "That is a fault of winhost. What it changed before that is in the journal: winhost runs"

    @property
    def hint(self) -> str:
        return "Please report it with this message and the facts of the host: winhost detect HOST -o FOLDER"


def as_winhost_error(error: Exception) -> WinhostError:
    """Whatever went wrong with one host, as an error that can be shown beside the results of others.

    Raises the error itself where nobody reads our output any more, which is no matter of a host.
    """
    if isinstance(error, WinhostError):
        return error
    if isinstance(error, MissingFact):
        return NotKnown(str(error))
    if is_closed_pipe(error):
        raise error
    if isinstance(error, OSError):
        return from_os_error(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    return Defect(type(error).__name__, f"{Path(last.filename).name}:{last.lineno}")


def from_os_error(error: OSError) -> WinhostError:
    """The system's answer as ours: a place is the user's to change, anything else is the machine's."""
    why = error.strerror or str(error)
    file = str(error.filename) if error.filename is not None else None
    if file is not None and isinstance(error, _OF_THE_PLACE):
        return UnusablePlace(file, why)
    return SystemFault(why, file)
