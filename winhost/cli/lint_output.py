"""What all linters share: reading the file, showing defects and advice apart, and the exit code."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import click

from winhost.cli.output import say
from winhost.model.category import Category
from winhost.model.errors import Exit, Fault, file_faults, visible
from winhost.model.files import TooLarge, read_within
from winhost.model.units import Bytes, KiB


class Counted(Protocol):
    """A finding of any linter."""

    @property
    def category(self) -> Category: ...


F = TypeVar("F", bound=Counted)


def exit_code(left: Sequence[Counted], strict: bool) -> int:
    """left: findings that were not mended."""
    return int(Exit.FAILURE if (strict and left) or _count(left, Category.DEFECT) else Exit.SUCCESS)


def show_findings(name: str, findings: Sequence[F], show: Callable[[Sequence[F]], None]) -> None:
    """Defects, then advice under a heading of its own. show: prints some of them."""
    defects = [each for each in findings if each.category is Category.DEFECT]
    advice = [each for each in findings if each.category is Category.ADVICE]
    if defects:
        show(defects)
    if advice:
        if defects:
            click.echo()
        say("Advice")
        show(advice)
    if not findings:
        say(f"{visible(name)}: nothing found")


def show_count(findings: Sequence[F], left: Sequence[F], strict: bool) -> None:
    """The last line: how many there are of each, and why the exit code is what it is."""
    if not findings:
        return
    said = ""
    for label, category in (("Defects", Category.DEFECT), ("Advice", Category.ADVICE)):
        mended = _count(findings, category) - _count(left, category)
        said += f"{label}: {_count(findings, category)}{f' ({mended} mended)' if mended else ''}. "
    if _count(left, Category.DEFECT):
        why = "there are defects"
    elif left:
        why = "--strict counts advice" if strict else "advice does not count without --strict"
    else:
        why = "all is mended"
    click.echo()
    say(f"{said}Exit code {exit_code(left, strict)}: {why}.")


def _count(findings: Sequence[Counted], category: Category) -> int:
    return sum(each.category is category for each in findings)


def content(file: Path, most: Bytes = 64 * KiB) -> bytes:
    """Of a file that is to be linted. Raises UsageError (FileFaults)."""
    try:
        return read_within(file, most)
    except TooLarge as large:
        fault = Fault(str(file), None, None, "", str(large))
    raise file_faults([fault])
