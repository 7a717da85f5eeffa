"""Errors as a user sees them: those of click and of the operating system, bugs of winhost, several in one message, and
the exit code.
"""

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import click

from winhost.cli.options import Form, asked_form
from winhost.cli.output import failed, show_error_text
from winhost.cli.terminal import is_closed_pipe, let_go_of_streams
from winhost.core.answers import MissingFact
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.files import check_writers
from winhost.model.secrets import SecretRef

T = TypeVar("T")

# Wrong about the path, not about the computer: another path may do.
_OF_THE_PATH = (FileNotFoundError, NotADirectoryError, IsADirectoryError, FileExistsError, PermissionError)


def from_click(error: click.ClickException) -> UsageError:
    """Turn an error of click into one of winhost."""
    message = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    hint = f"How it is used: {context.command_path} --help" if context else None
    return _wrong_usage(visible(message[:1].lower() + message[1:]), hint=hint)


def _wrong_usage(what: str, meaning: str | None = None, hint: str | None = None) -> UsageError:
    return UsageError("WrongUsage", what=what, meaning=meaning, hint=hint)


def from_missing_fact(missing: MissingFact) -> WinhostError:
    """Make the error for a fact that was not read, and without which a command cannot go on."""
    from winhost.connect.wire_errors import error_of  # wrong usage must not load it

    return error_of(missing) or WinhostError(
        "NotKnown",
        what=visible(str(missing)),
        meaning="This command needs it, and winhost never guesses.",
        hint="Read the host again, as an administrator: winhost detect HOST -o facts",
    )


def as_winhost_error(error: Exception) -> WinhostError:
    """Turn what went wrong with one host into an error that can be shown beside the results of others.

    Raises a closed pipe as it is: that is no fault of a host.
    """
    if isinstance(error, WinhostError):
        return error
    if isinstance(error, MissingFact):
        return from_missing_fact(error)
    if is_closed_pipe(error):
        raise error
    if isinstance(error, OSError):
        return from_os_error(error)
    # A bug of winhost: only its type, file and line are kept, because its message and its frames may hold secrets.
    last = traceback.extract_tb(error.__traceback__)[-1]
    return WinhostError(
        "Defect",
        what=f"winhost itself failed ({type(error).__name__} at {Path(last.filename).name}:{last.lineno})",
        meaning="This is a bug in winhost. What it changed before that is in the journal: winhost runs",
        hint="Please report it with this message and the facts of the host: winhost detect HOST -o FOLDER",
    )


def from_os_error(error: OSError) -> WinhostError:
    """Turn an error of the operating system into one of winhost. Only a wrong path is an error of usage."""
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


@contextmanager
def os_errors() -> Iterator[None]:
    """Raise errors of the operating system as `from_os_error` makes them."""
    try:
        yield
    except OSError as error:
        raise from_os_error(error) from error


@contextmanager
def usage_errors(option: str | None = None) -> Iterator[None]:
    """Raise a ValueError as click's UsageError, or as BadParameter of the option whose value it is about."""
    try:
        yield
    except ValueError as wrong:
        raise (click.BadParameter(str(wrong), param_hint=option) if option else click.UsageError(str(wrong))) from None


def secret_reference(text: str | None, option: str) -> SecretRef | None:
    """Parse the secret reference of an option. Raises BadParameter."""
    with usage_errors(option):
        return None if text is None else SecretRef.parse(text)


def text_of(file: Path, option: str) -> str:
    """Read a text that an option names, and warn where others can write it. Raises BadParameter."""
    try:
        check_writers(file)
        return file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise click.BadParameter(f"{visible(str(file))} cannot be read: {why}", param_hint=option) from None


# ---- all that is missing or wrong in the words of one command


class Faults:
    """Collects errors until `refuse`. Checks that depend on one another raise the same error, which counts once."""

    def __init__(self) -> None:
        self._found: dict[str, Exception] = {}

    def add(self, text: str) -> None:
        """Add a fault. text: with the option that mends it, and an example."""
        self._found.setdefault(text, click.UsageError(text))

    def of(self, ask: Callable[[], T], also: str = "") -> T | None:
        """Return the result of a call, or keep its error. also: what to add to an error that is no wrong usage."""
        try:
            return ask()
        except (click.UsageError, WinhostError) as error:
            known = from_click(error) if isinstance(error, click.ClickException) else error
            hint = known.hint if known is error else None  # click's names the help of the command
            text = "\n".join(filter(None, (known.what, known.meaning, hint))).replace("\n", "\n   ")
            if also and not isinstance(error, click.UsageError | UsageError):
                text += f"\n   {also}"
            self._found.setdefault(text, error)
        return None

    def refuse(self) -> None:
        """Raise the only fault as it came, or UsageError (WrongUsage) for several."""
        errors = [*self._found.values()]
        if len(errors) == 1:
            raise errors[0]
        if errors:
            listed = "\n".join(f"{number}. {text}" for number, text in enumerate(self._found, 1))
            raise _wrong_usage(f"{len(errors)} things are missing or wrong", listed)


def show_failure(error: Exception, words: Sequence[str]) -> int:
    """Show an error in the form that the command line asks for. Returns the exit code; raises a defect of winhost."""
    form = asked_form(words)
    if isinstance(error, click.ClickException):
        _show(from_click(error), form, words)
        return error.exit_code
    if isinstance(error, OSError):
        let_go_of_streams()
        form = form if error.filename is not None else None  # else it may be stdout itself that takes nothing
        error = from_os_error(error)
    elif isinstance(error, MissingFact):
        error = from_missing_fact(error)
    if not isinstance(error, WinhostError):
        raise error
    _show(error, form, words)
    return int(error.exit_code)


def _show(error: WinhostError, form: Form | None, words: Sequence[str]) -> None:
    """Show an error. If stdout and stderr are closed, only the exit code tells of it."""
    try:
        if form:
            from winhost.cli.envelope import answer  # loads pydantic, which a misspelt word need not wait for

            answer("error", [failed(error)], form)
        elif "--jsonl" in words:
            from winhost.cli.jsonl import print_end  # loads the engine as well

            print_end(None, error)
        else:
            fleet = next((after for word, after in pairwise(words) if word == "--fleet"), None)
            show_error_text(error, fleet=fleet)
    except OSError:
        let_go_of_streams()
