"""winhost lint wslconfig, wslconf: files that WSL reads without a word about what is wrong with them."""

from collections.abc import Sequence
from pathlib import Path

import click
from packaging.version import InvalidVersion, Version

from winhost.cli.envelope import show_results
from winhost.cli.lint_output import content, exit_code, show_count, show_findings
from winhost.cli.named_files import facts_file as named_facts
from winhost.cli.outputs import Output
from winhost.cli.tables import table
from winhost.core.dataclass import dataclass
from winhost.recipes.wslconfig_limits import wslconfig_limits
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts, of_other_system
from winhost.wslconfig import WSLCONF, WSLCONFIG, Dialect, LintFinding, lint
from winhost.wslconfig.host_limits import NOTHING_KNOWN, HostLimits


@dataclass(frozen=True)
class Linted:
    """What WSL passes over in a file."""

    file: str
    findings: tuple[LintFinding, ...]


def wslconfig(
    file: Path, facts: Path | None, version: str | None, facts_file: Path | None, strict: bool, output: Output
) -> int:
    """Check the .wslconfig of an account."""
    wsl = _version(version)
    named = named_facts(facts, facts_file, "--facts")
    return _lint(file, WSLCONFIG, wsl, strict, output, _limits_of(named) if named else NOTHING_KNOWN)


def wslconf(file: Path, version: str | None, strict: bool, output: Output) -> int:
    """Check the /etc/wsl.conf of a distro."""
    return _lint(file, WSLCONF, _version(version), strict, output)


def _version(text: str | None) -> Version | None:
    """`2.7.14`, as `wsl --version` and `winhost detect` tell it."""
    try:
        return None if text is None else Version(text)
    except InvalidVersion:
        raise click.BadParameter(f"{text!r:.80} is not a version; write it as 2.7.14", param_hint="'--wsl'") from None


def _limits_of(facts_file: Path) -> HostLimits:
    """Of a Windows host. Raises UsageError (OtherSystem)."""
    facts = HostFacts(read_facts(facts_file))
    if facts.is_linux:
        raise of_other_system(facts, ".wslconfig")
    return wslconfig_limits(facts)


def _lint(
    file: Path,
    dialect: Dialect,
    version: Version | None,
    strict: bool,
    output: Output,
    host: HostLimits = NOTHING_KNOWN,
) -> int:
    findings = lint(content(file), dialect, version=version, host=host)

    def rows(shown: Sequence[LintFinding]) -> None:
        cells = [(f"{file}:{it.line}:{it.column}", it.severity, it.code, it.sentence) for it in shown]
        table(("location", "effect", "code", "finding"), cells)

    def show(_: Linted) -> None:
        show_findings(str(file), findings, rows)
        show_count(findings, findings, strict)

    show_results("lint", output.shape, [(str(file), Linted(str(file), tuple(findings)))], show)
    return exit_code(findings, strict)
