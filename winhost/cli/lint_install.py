"""winhost lint autoinstall: files that Ubuntu's installer accepts, and then wipes disks."""

from pathlib import Path

from winhost.autoinstall.autoinstall_file import read_known_disks
from winhost.autoinstall.lint import lint_autoinstall
from winhost.cli.named_files import facts_file as named_facts
from winhost.cli.outputs import Output
from winhost.cli.show_findings import content, show_linted, version
from winhost.model.units import KiB

LARGEST = 512 * KiB


def autoinstall(
    file: Path, facts: Path | None, facts_file: Path | None, installer: str | None, strict: bool, output: Output
) -> int:
    """Check a file for the automatic installation of Ubuntu."""
    named = named_facts(facts, facts_file, "--facts")
    disks = read_known_disks(named) if named else ()
    known = version(installer, "24.04.4", "--installer")
    found = lint_autoinstall(content(file, LARGEST), installer=known, disks=disks)
    return show_linted(str(file), found, strict, output)
