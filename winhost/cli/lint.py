"""winhost lint: files that WSL reads without a word about what is wrong with them."""

from dataclasses import dataclass
from pathlib import Path

import click
from packaging.version import InvalidVersion, Version

from winhost.cli.envelope import show_results
from winhost.cli.named_files import facts_file as named_facts
from winhost.cli.output import say
from winhost.cli.outputs import Output
from winhost.cli.tables import table
from winhost.core.answers import MissingFact
from winhost.model.errors import Exit, Fault, file_faults
from winhost.model.files import TooLarge, read_within
from winhost.model.units import Bytes, KiB
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts
from winhost.resources.windows.wsl.resource import Wsl
from winhost.wslconfig import WSLCONF, WSLCONFIG, Dialect, LintFinding, LintSeverity, lint
from winhost.wslconfig.policies import forbidden


@dataclass(frozen=True)
class Linted:
    """What WSL passes over in a file."""

    file: str
    findings: tuple[LintFinding, ...]


def wslconfig(file: Path, facts: Path | None, version: str | None, facts_file: Path | None, output: Output) -> int:
    """Check the .wslconfig of an account."""
    wsl = _version(version)
    named = named_facts(facts, facts_file, "--facts")
    read_version, forbidden = _wsl_of(named) if named else (None, frozenset[str]())
    return _lint(file, WSLCONFIG, wsl or read_version, output, forbidden)


def wslconf(file: Path, version: str | None, output: Output) -> int:
    """Check the /etc/wsl.conf of a distro."""
    return _lint(file, WSLCONF, _version(version), output)


def _version(text: str | None) -> Version | None:
    """`2.7.14`, as `wsl --version` and `winhost detect` tell it."""
    try:
        return None if text is None else Version(text)
    except InvalidVersion:
        raise click.BadParameter(f"{text!r:.80} is not a version; write it as 2.7.14", param_hint="'--wsl'") from None


def _wsl_of(facts_file: Path) -> tuple[Version | None, frozenset[str]]:
    """The WSL of a host, and the settings that a policy there forbids. What it could not tell is told as not known."""
    facts = HostFacts(read_facts(facts_file))
    try:
        version = facts.the(Wsl).version
        return Version(version) if version else None, forbidden(facts)
    except MissingFact as missing:
        raise click.BadParameter(f"{missing}; leave it out, or read the host again", param_hint="--facts") from missing


def _lint(
    file: Path,
    dialect: Dialect,
    version: Version | None,
    output: Output,
    forbidden: frozenset[str] = frozenset(),
) -> int:
    findings = lint(content(file), dialect, version=version, forbidden=forbidden)

    def show(_: Linted) -> None:
        rows = [(f"{file}:{it.line}:{it.column}", it.severity, it.code, it.sentence) for it in findings]
        table(("location", "effect", "code", "finding"), rows) if rows else say(f"{file}: nothing found")

    show_results("lint", output.shape, [(str(file), Linted(str(file), tuple(findings)))], show)
    return int(Exit.FAILURE if any(it.severity is not LintSeverity.NOTE for it in findings) else Exit.SUCCESS)


def content(file: Path, most: Bytes = 64 * KiB) -> bytes:
    """Of a file that is to be linted. Raises UsageError (FileFaults)."""
    try:
        return read_within(file, most)
    except TooLarge as large:
        fault = Fault(str(file), None, None, "", str(large))
    raise file_faults([fault])
