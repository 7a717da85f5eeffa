"""The one place that decides what a user sees of an error, and with which exit code winhost ends."""

from collections.abc import Sequence
from itertools import pairwise

import click

from winhost.cli.foreign_errors import from_click, from_missing_fact, from_os_error
from winhost.cli.output import failed, show_error_text
from winhost.cli.outputs import Form, asked_form
from winhost.cli.streams import let_go_of_streams
from winhost.core.answers import MissingFact
from winhost.model.errors import WinhostError


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


def _fleet(words: Sequence[str]) -> str | None:
    return next((after for word, after in pairwise(words) if word == "--fleet"), None)


def _show(error: WinhostError, form: Form | None, words: Sequence[str]) -> None:
    """Show an error. If nobody listens any more, only the exit code tells of it."""
    try:
        if form:
            from winhost.cli.envelope import answer  # loads pydantic, which a misspelt word need not wait for

            answer("error", [failed(error)], form)
        elif "--jsonl" in words:
            from winhost.cli.jsonl import print_end  # likewise, and the engine

            print_end(None, error, int(error.exit_code))
        else:
            show_error_text(error, fleet=_fleet(words))
    except OSError:
        let_go_of_streams()
