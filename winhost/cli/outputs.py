"""The option `-o`, which is the same on every command: a word for the form of the answer, or a path to write to.

`wide`, `json`, `yaml` and `name` are forms. Anything else is the file or folder that a command writes, if it writes
one; a file with such a name is `./json`.
"""

import os
import re
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args

import click

from winhost.core.dataclass import dataclass

Form: TypeAlias = Literal["json", "yaml"]
Shape: TypeAlias = Literal["table", "wide", "json", "yaml", "name"]
FORMS = tuple(form for form in get_args(Shape) if form != "table")

_ASKED = re.compile(r"(?:^|\0)(?:--json|(?:-o\0?|--output[=\0])(?P<form>json|yaml))(?:\0|$)")

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Output:
    """The form of a command's answer, and the path it writes to. folder: a `/` at its end says that it is one."""

    shape: Shape = "table"
    path: Path | None = None
    folder: bool = False

    @property
    def form(self) -> Form | None:
        """Return the form of a document for programs."""
        return self.shape if self.shape in ("json", "yaml") else None

    @property
    def required_path(self) -> Path:
        """The path, for a command that needs one."""
        assert self.path is not None
        return self.path

    @property
    def wide(self) -> bool:
        return self.shape == "wide"


def answers(
    writes: str | None = None, written: str = "", *, required: bool = False, wide: bool = False
) -> Callable[[F], F]:
    """Add `-o` and `--json`, as one argument `output` of the command. writes: what its help calls the place that the
    command writes to; written: what it writes there; wide: there is more to show than it shows by itself.
    """
    metavar = f"FORMAT|{writes}" if writes else "FORMAT"
    forms = FORMS if wide else tuple(form for form in FORMS if form != "wide")
    text = f"the output format: {', '.join(forms[:-1])} or {forms[-1]}."
    text = f"{written} Or {text} May be given twice." if writes else text[0].upper() + text[1:]

    def decorate(command: F) -> F:
        @wraps(command)
        def answering(*args: Any, outputs: tuple[str, ...], as_json: bool, **kwargs: Any) -> Any:
            chosen = _chosen(outputs, as_json, bool(writes))
            if chosen.wide and not wide:
                raise click.BadParameter("'wide' has nothing more to show here", param_hint="-o")
            if kwargs.get("as_jsonl") and chosen.shape != "table":
                raise click.UsageError("-o or --json and --jsonl are two forms of one answer: choose one")
            if required and chosen.path is None:
                raise click.UsageError(f"Missing option '-o': name the {str(writes).lower()} to write.")
            return command(*args, output=chosen, **kwargs)

        return cast(F, as_json(shape(answering)))

    shape = click.option("-o", "--output", "outputs", multiple=True, metavar=metavar, help=text)
    as_json = click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
    return decorate


def _chosen(words: tuple[str, ...], as_json: bool, writes: bool) -> Output:
    forms = [word for word in words if word in FORMS] + ["json"] * as_json
    paths = [word for word in words if word not in FORMS]
    if len(set(forms)) > 1:
        raise click.BadParameter(f"{' and '.join(forms)} are forms of one answer: choose one", param_hint="-o")
    if paths and not writes:
        raise click.BadParameter(
            f"{paths[0]!r} is none of {', '.join(FORMS)}, and this command writes no file", param_hint="-o"
        )
    if len(paths) > 1:
        raise click.BadParameter(f"{' and '.join(map(repr, paths))} are two destinations: choose one", param_hint="-o")
    shape: Any = forms[0] if forms else "table"
    if not paths:
        return Output(shape)
    return Output(shape, Path(paths[0]), paths[0].endswith(("/", os.sep)))


def asked_form(words: Sequence[str]) -> Form | None:
    """Find the form of errors, even if the words are no command."""
    found = _ASKED.search("\0".join(words))
    if found is None:
        return None
    return "yaml" if found["form"] == "yaml" else "json"
