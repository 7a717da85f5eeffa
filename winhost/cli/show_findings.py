"""Shared by all linters: the result, how its findings are shown, and the exit code."""

from collections.abc import Sequence
from pathlib import Path

import click
from packaging.version import InvalidVersion, Version

from winhost.cli.envelope import show_results
from winhost.cli.output import say
from winhost.cli.outputs import Output
from winhost.core.dataclass import dataclass
from winhost.findings.finding import Finding
from winhost.model.errors import Exit, Fault, file_faults, visible
from winhost.model.files import TooLarge, read_within
from winhost.model.reason import Category
from winhost.model.units import Bytes, KiB


@dataclass(frozen=True)
class Linted:
    """The findings in a file."""

    file: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Telling:
    """everything: also what findings rest on; strict: advice counts; mended: what can be mended was."""

    strict: bool
    everything: bool = False
    mended: bool = False

    def left(self, findings: Sequence[Finding]) -> list[Finding]:
        """Those that were not mended."""
        return [each for each in findings if not (self.mended and each.fixed)]

    def exit_code(self, findings: Sequence[Finding]) -> int:
        left = self.left(findings)
        return int(Exit.FAILURE if (self.strict and left) or _count(left, Category.DEFECT) else Exit.SUCCESS)


def show_linted(file: str, findings: Sequence[Finding], strict: bool, output: Output) -> int:
    """Show all that was found in a file that is not mended, and return the exit code."""
    telling = Telling(strict)

    def show(_: Linted) -> None:
        show_findings(file, findings, telling)
        show_count(findings, telling)

    show_results("lint", output.shape, [(file, Linted(file, tuple(findings)))], show)
    return telling.exit_code(findings)


def show_findings(name: str, findings: Sequence[Finding], telling: Telling) -> None:
    """Defects, then advice under a heading of its own."""
    if not findings:
        say(f"{visible(name)}: nothing found")
    for category, heading in ((Category.DEFECT, ""), (Category.ADVICE, "Advice")):
        some = [each for each in findings if each.category is category]
        if some and heading:
            if len(some) < len(findings):
                click.echo()
            say(heading)
        for each in some:
            _show(visible(name), each, telling)


def _show(name: str, each: Finding, telling: Telling) -> None:
    where = f" ({each.where})" if each.where else ""
    say(f"{name}:{each.line}:{each.column}: {each.severity.in_file}: {each.sentence} [{each.code}]{where}")
    done = "" if not each.fixed else " [mended]" if telling.mended else " [--fix does this]"
    doubt = f" (unverified: {each.unverified} is not known)" if each.unverified else ""
    if each.do or done or doubt:
        say(f"  {each.do}{done}{doubt}", hang=2)
    for evidence in each.evidence if telling.everything else ():
        say(f"  {evidence.claim} ({evidence.kind}: {evidence.source}; {evidence.seen})", hang=2)


def show_count(findings: Sequence[Finding], telling: Telling) -> None:
    """The last line: how many there are of each, and why the exit code is what it is."""
    if not findings:
        return
    left, said = telling.left(findings), ""
    for label, category in (("Defects", Category.DEFECT), ("Advice", Category.ADVICE)):
        mended = _count(findings, category) - _count(left, category)
        said += f"{label}: {_count(findings, category)}{f' ({mended} mended)' if mended else ''}. "
    if _count(left, Category.DEFECT):
        why = "there are defects"
    elif left:
        why = "--strict counts advice" if telling.strict else "advice does not count without --strict"
    else:
        why = "all is mended"
    click.echo()
    say(f"{said}Exit code {telling.exit_code(findings)}: {why}.")


def _count(findings: Sequence[Finding], category: Category) -> int:
    return sum(each.category is category for each in findings)


def content(file: Path, most: Bytes = 64 * KiB) -> bytes:
    """Read a file that is to be linted. Raises UsageError (FileFaults)."""
    try:
        return read_within(file, most)
    except TooLarge as large:
        fault = Fault(str(file), None, None, "", str(large))
    raise file_faults([fault])


def version(text: str | None, example: str, option: str) -> Version | None:
    """Parse the version of an option, which should be written as the example is."""
    try:
        return None if text is None else Version(text)
    except InvalidVersion:
        raise click.BadParameter(
            f"{text!r:.80} is not a version; write it as {example}", param_hint=f"'{option}'"
        ) from None
