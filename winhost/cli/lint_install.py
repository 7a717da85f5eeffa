"""winhost lint autoinstall: files that Ubuntu's installer accepts, and then wipes disks."""

from collections.abc import Sequence
from pathlib import Path

import click
from packaging.version import InvalidVersion, Version

from winhost.autoinstall.install_findings import InstallFinding
from winhost.autoinstall.known_disks import read_known_disks
from winhost.autoinstall.lint_autoinstall import lint_autoinstall
from winhost.cli.envelope import show_results
from winhost.cli.lint_output import content, exit_code, show_count, show_findings
from winhost.cli.named_files import facts_file as named_facts
from winhost.cli.outputs import Output
from winhost.cli.tables import table
from winhost.core.dataclass import dataclass
from winhost.model.units import KiB

LARGEST = 512 * KiB


@dataclass(frozen=True)
class LintedInstall:
    """What Ubuntu's installer would make of a file."""

    file: str
    findings: tuple[InstallFinding, ...]


def autoinstall(
    file: Path, facts: Path | None, facts_file: Path | None, installer: str | None, strict: bool, output: Output
) -> int:
    """Check a file for the automatic installation of Ubuntu."""
    named = named_facts(facts, facts_file, "--facts")
    disks = read_known_disks(named) if named else ()
    findings = lint_autoinstall(content(file, LARGEST), installer=_version(installer), disks=disks)

    def rows(shown: Sequence[InstallFinding]) -> None:
        cells = [(f"{file}:{it.line}:{it.column}", it.effect, it.code, f"{it.sentence} {it.mend}") for it in shown]
        table(("location", "effect", "code", "finding"), cells)

    def show(_: LintedInstall) -> None:
        show_findings(str(file), findings, rows)
        show_count(findings, findings, strict)

    show_results("lint-autoinstall", output.shape, [(str(file), LintedInstall(str(file), tuple(findings)))], show)
    return exit_code(findings, strict)


def _version(text: str | None) -> Version | None:
    try:
        return None if text is None else Version(text)
    except InvalidVersion:
        raise click.BadParameter(
            f"{text!r:.80} is not a version; write it as 24.04.4", param_hint="'--installer'"
        ) from None
