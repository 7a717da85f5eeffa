"""All that is missing or wrong in the words of one command, told in one message."""

from collections.abc import Callable
from typing import TypeVar

import click

from winhost.cli.foreign_errors import from_click
from winhost.model.errors import UsageError, WinhostError

T = TypeVar("T")


class Faults:
    """Collects errors until `refuse`. Checks that depend on one another raise the same error, which counts once."""

    def __init__(self) -> None:
        self._found: dict[str, Exception] = {}

    def add(self, text: str) -> None:
        """text: with the option that mends it, and an example."""
        self._found.setdefault(text, click.UsageError(text))

    def of(self, ask: Callable[[], T], also: str = "") -> T | None:
        """What was asked for; None where that raises an error that users see. also: of what is beyond these words."""
        try:
            return ask()
        except (click.UsageError, WinhostError) as error:
            text = _text(error)
            if also and not isinstance(error, click.UsageError | UsageError):
                text += f"\n   {also}"
            self._found.setdefault(text, error)
        return None

    def refuse(self) -> None:
        """Raises the only fault as it came, and UsageError (WrongUsage) for several."""
        errors = [*self._found.values()]
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise UsageError(
                "WrongUsage",
                what=f"{len(errors)} things are missing or wrong",
                meaning="\n".join(f"{number}. {text}" for number, text in enumerate(self._found, 1)),
            )


def _text(error: Exception) -> str:
    known = from_click(error) if isinstance(error, click.ClickException) else error
    assert isinstance(known, WinhostError)
    more = known.hint if isinstance(error, WinhostError) else None  # click's names the help of the command
    return "\n   ".join(line for text in (known.what, known.meaning, more) if text for line in text.split("\n"))
