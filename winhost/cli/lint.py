"""winhost lint wslconfig, wslconf: files that WSL reads without a word about what is wrong with them."""

from pathlib import Path

from packaging.version import Version

from winhost.cli.named_files import facts_file as named_facts
from winhost.cli.outputs import Output
from winhost.cli.show_findings import content, show_linted
from winhost.cli.show_findings import version as parsed
from winhost.recipes.wslconfig_limits import wslconfig_limits
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts, of_other_system
from winhost.wslconfig import WSLCONF, WSLCONFIG, lint
from winhost.wslconfig.rules import NOTHING_KNOWN, HostLimits


def wslconfig(
    file: Path, facts: Path | None, version: str | None, facts_file: Path | None, strict: bool, output: Output
) -> int:
    """Check the .wslconfig of an account."""
    wsl, named = _version(version), named_facts(facts, facts_file, "--facts")
    host = _limits_of(named) if named else NOTHING_KNOWN
    return show_linted(str(file), lint(content(file), WSLCONFIG, version=wsl, host=host), strict, output)


def wslconf(file: Path, version: str | None, strict: bool, output: Output) -> int:
    """Check the /etc/wsl.conf of a distro."""
    found = lint(content(file), WSLCONF, version=_version(version))
    return show_linted(str(file), found, strict, output)


def _version(text: str | None) -> Version | None:
    return parsed(text, "2.7.14", "--wsl")


def _limits_of(facts_file: Path) -> HostLimits:
    """The limits of a Windows host. Raises UsageError (OtherSystem)."""
    facts = HostFacts(read_facts(facts_file))
    if facts.is_linux:
        raise of_other_system(facts, ".wslconfig")
    return wslconfig_limits(facts)
