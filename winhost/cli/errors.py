"""Turn errors of click, of the operating system and of winhost itself into messages and exit codes for the user."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import click

from winhost.cli.options import Form, requested_form
from winhost.cli.output import error_result, show_error_text
from winhost.cli.terminal import discard_output, is_closed_pipe
from winhost.core.answers import MissingFact
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.files import check_writers
from winhost.model.secrets import SecretRef

T = TypeVar("T")

# Errors about a path, so that another path may work.
_PATH_ERRORS = (FileNotFoundError, NotADirectoryError, IsADirectoryError, FileExistsError, PermissionError)


def from_click(error: click.ClickException) -> UsageError:
    """Turn an error of click into one of winhost."""
    message = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    hint = f"How it is used: {context.command_path} --help" if context else None
    return _wrong_usage(visible(message[:1].lower() + message[1:]), hint=hint)


def _wrong_usage(what: str, meaning: str | None = None, hint: str | None = None) -> UsageError:
    return UsageError("WrongUsage", what=what, meaning=meaning, hint=hint)


def from_missing_fact(missing: MissingFact) -> WinhostError:
    """Return the error for a command that needs a fact which was not read."""
    from winhost.connect.wire_errors import error_of  # wrong usage must not load it

    return error_of(missing) or WinhostError(
        "NotKnown",
        what=visible(str(missing)),
        meaning="This command needs it, and winhost never guesses.",
        hint="Read the host again, as an administrator: winhost detect HOST -o facts",
    )


def as_winhost_error(error: Exception) -> WinhostError:
    """Turn any error about one host into one that can be shown with the results of other hosts.

    Raises the error of a closed pipe as it is, because it has nothing to do with the host.
    """
    if isinstance(error, WinhostError):
        return error
    if isinstance(error, MissingFact):
        return from_missing_fact(error)
    if is_closed_pipe(error):
        raise error
    if isinstance(error, OSError):
        return from_os_error(error)
    # A bug of winhost. Only its type, file and line are shown: its message and frames may contain secrets.
    last = traceback.extract_tb(error.__traceback__)[-1]
    return WinhostError(
        "Defect",
        what=f"winhost itself failed ({type(error).__name__} at {Path(last.filename).name}:{last.lineno})",
        meaning="This is a bug in winhost. What it changed before that is in the journal: winhost runs",
        hint="Please report it with this message and the facts of the host: winhost detect HOST -o FOLDER",
    )


def from_os_error(error: OSError) -> WinhostError:
    """Turn an error of the operating system into one of winhost. It is an error of usage if a path is wrong."""
    reason = error.strerror or str(error)
    file = str(error.filename) if error.filename is not None else None
    if file is not None and isinstance(error, _PATH_ERRORS):
        return UsageError(
            "UnusablePlace",
            what=f"{visible(file)} cannot be used ({reason})",
            hint="Check the path and its permissions, or name another one.",
        )
    named_file = f" {visible(file)}" if file else ""
    return WinhostError("SystemFault", what=f"the operating system refused{named_file}: {reason}")


@contextmanager
def os_errors() -> Iterator[None]:
    """Turn errors of the operating system inside the block into errors of winhost."""
    try:
        yield
    except OSError as error:
        raise from_os_error(error) from error


@contextmanager
def usage_errors(option: str | None = None) -> Iterator[None]:
    """Turn a ValueError inside the block into click's UsageError, or into BadParameter for an option."""
    try:
        yield
    except ValueError as error:
        raise (click.BadParameter(str(error), param_hint=option) if option else click.UsageError(str(error))) from None


def secret_reference(text: str | None, option: str) -> SecretRef | None:
    """Parse the secret reference of an option. Raises BadParameter."""
    with usage_errors(option):
        return None if text is None else SecretRef.parse(text)


def read_option_file(file: Path, option: str) -> str:
    """Read the text file that an option names, and warn if other users can write it. Raises BadParameter."""
    try:
        check_writers(file)
        return file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise click.BadParameter(f"{visible(str(file))} cannot be read: {reason}", param_hint=option) from None


# ---- several faults of one command line


class Faults:
    """Collects errors until `refuse`. Checks that depend on one another raise the same error, which counts once."""

    def __init__(self) -> None:
        self._errors: dict[str, Exception] = {}

    def add(self, text: str) -> None:
        """Add a fault. text: names the option that mends it, with an example."""
        self._errors.setdefault(text, click.UsageError(text))

    def collect(self, call: Callable[[], T], hint: str = "") -> T | None:
        """Return the result of a call, or keep its error and return None. hint: what to add to an error that is not
        about wrong usage.
        """
        try:
            return call()
        except (click.UsageError, WinhostError) as error:
            fault = from_click(error) if isinstance(error, click.ClickException) else error
            own_hint = fault.hint if fault is error else None  # the hint of a click error only names the command's help
            text = "\n".join(filter(None, (fault.what, fault.meaning, own_hint))).replace("\n", "\n   ")
            if hint and not isinstance(error, click.UsageError | UsageError):
                text += f"\n   {hint}"
            self._errors.setdefault(text, error)
        return None

    def refuse(self) -> None:
        """Raise the only error as it is, or UsageError (WrongUsage) for several."""
        errors = [*self._errors.values()]
        if len(errors) == 1:
            raise errors[0]
        if errors:
            texts = "\n".join(f"{number}. {text}" for number, text in enumerate(self._errors, 1))
            raise _wrong_usage(f"{len(errors)} things are missing or wrong", texts)


def show_failure(error: Exception, arguments: Sequence[str]) -> int:
    """Show an error in the form that the command line requests, and return the exit code. Raises a bug of winhost as it
    is.
    """
    form = requested_form(arguments)
    if isinstance(error, click.ClickException):
        _show(from_click(error), form, arguments)
        return error.exit_code
    if isinstance(error, OSError):
        discard_output()
        form = form if error.filename is not None else None  # without a file name, stdout itself may have failed
        error = from_os_error(error)
    elif isinstance(error, MissingFact):
        error = from_missing_fact(error)
    if not isinstance(error, WinhostError):
        raise error
    _show(error, form, arguments)
    return int(error.exit_code)


def _show(error: WinhostError, form: Form | None, arguments: Sequence[str]) -> None:
    """Show an error. If stdout and stderr are closed, the exit code is all that remains of it."""
    try:
        if form:
            from winhost.cli.envelope import print_document  # loads pydantic, which a misspelt word need not wait for

            print_document("error", [error_result(error)], form)
        elif "--jsonl" in arguments:
            from winhost.cli.jsonl import print_end  # loads the engine as well

            print_end(None, error)
        else:
            fleet = next((value for argument, value in pairwise(arguments) if argument == "--fleet"), None)
            show_error_text(error, fleet=fleet)
    except OSError:
        discard_output()
