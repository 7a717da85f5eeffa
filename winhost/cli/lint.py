"""winhost lint: files that others read without a word about what is wrong with them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from winhost.cli.groups import WinhostGroup
from winhost.cli.outputs import Output, answers
from winhost.model.errors import Exit

if TYPE_CHECKING:
    from packaging.version import Version

    from winhost.wslconfig import Dialect


class WslVersion(click.ParamType["Version"]):
    """`2.7.14`, as `wsl --version` and `winhost detect` tell it."""

    name = "version"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> "Version":
        from packaging.version import InvalidVersion, Version

        try:
            return Version(value)
        except InvalidVersion:
            self.fail(f"{value!r:.80} is not a version; write it as 2.7.14", param, ctx)


file_argument = click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
facts_argument = click.argument("facts", metavar="[FACTS]", required=False, type=click.Path(path_type=Path))
facts_option = click.option("--facts", "facts_file", type=click.Path(path_type=Path), help="The same as FACTS.")
version_option = click.option("--wsl", "version", type=WslVersion(), help="The WSL that will read it, such as 2.7.14.")


@click.group(cls=WinhostGroup)
def lint() -> None:
    """Say what WSL will silently leave out of its configuration files."""


@lint.command()
@file_argument
@facts_argument
@version_option
@facts_option
@answers()
def wslconfig(
    file: Path, facts: Path | None, version: "Version | None", facts_file: Path | None, output: Output
) -> int:
    """Check the .wslconfig of an account.

    FACTS of the host that will read it tell its WSL, and what a policy there forbids.
    """
    from winhost.cli.named_files import facts_file as meant
    from winhost.wslconfig import WSLCONFIG

    named = meant(facts, facts_file, "--facts")
    told, forbidden = _told_by(named) if named else (None, frozenset[str]())
    return _lint(file, WSLCONFIG, version or told, output, forbidden)


@lint.command()
@file_argument
@version_option
@answers()
def wslconf(file: Path, version: "Version | None", output: Output) -> int:
    """Check the /etc/wsl.conf of a distro."""
    from winhost.wslconfig import WSLCONF

    return _lint(file, WSLCONF, version, output)


def _told_by(facts_file: Path) -> "tuple[Version | None, frozenset[str]]":
    """The WSL of a host, and the settings that a policy there forbids. What it could not tell is told as not known."""
    from packaging.version import Version

    from winhost.model.facts import MissingFact
    from winhost.resources.factsfile import read_facts
    from winhost.resources.host import HostFacts
    from winhost.resources.windows.wsl.resource import Wsl
    from winhost.wslconfig.policies import forbidden

    facts = HostFacts(read_facts(facts_file))
    try:
        version = facts.the(Wsl).version
        return Version(version) if version else None, forbidden(facts)
    except MissingFact as missing:
        raise click.BadParameter(f"{missing}; leave it out, or read the host again", param_hint="--facts") from missing


def _lint(
    file: Path,
    dialect: "Dialect",
    version: "Version | None",
    output: Output,
    forbidden: "frozenset[str]" = frozenset(),
) -> int:
    from winhost.cli.answers import Linted
    from winhost.cli.envelope import show_results
    from winhost.cli.output import say, table
    from winhost.wslconfig import LintSeverity, lint

    findings = lint(_content(file), dialect, version=version, forbidden=forbidden)

    def show(_: Linted) -> None:
        rows = [(f"{file}:{it.line}:{it.column}", it.severity, it.code, it.sentence) for it in findings]
        table(("place", "effect", "code", "finding"), rows) if rows else say(f"{file}: nothing to find")

    show_results("lint", output.shape, [(str(file), Linted(str(file), tuple(findings)))], show)
    return int(Exit.FAILURE if any(it.severity is not LintSeverity.NOTE for it in findings) else Exit.SUCCESS)


def _content(file: Path) -> bytes:
    from winhost.model.errors import Fault, file_faults
    from winhost.model.files import TooLarge, read_within
    from winhost.model.units import KiB

    try:
        return read_within(file, 64 * KiB)
    except TooLarge as large:
        fault = Fault(str(file), None, None, "", str(large))
    raise file_faults([fault])
