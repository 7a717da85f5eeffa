"""Arguments, options and help of `winhost lint`."""

from pathlib import Path

import click

from winhost.cli.groups import WinhostGroup, implemented_in
from winhost.cli.outputs import answers

file_argument = click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
facts_argument = click.argument("facts", metavar="[FACTS]", required=False, type=click.Path(path_type=Path))
facts_option = click.option("--facts", "facts_file", type=click.Path(path_type=Path), help="The same as FACTS.")
version_option = click.option(
    "--wsl", "version", metavar="VERSION", help="The WSL version that will read the file, for example 2.7.14."
)


@click.group(cls=WinhostGroup)
def lint() -> None:
    """Find what WSL silently ignores in its files, and what Ubuntu's installer would wipe."""


@lint.command()
@file_argument
@facts_argument
@version_option
@facts_option
@answers()
@implemented_in("winhost.cli.lint")
def wslconfig() -> None:
    """Check the .wslconfig of an account.

    FACTS of the host that will read the file supply its WSL version and the settings that a policy forbids.
    """


@lint.command()
@file_argument
@version_option
@answers()
@implemented_in("winhost.cli.lint")
def wslconf() -> None:
    """Check the /etc/wsl.conf of a distro."""


@lint.command()
@file_argument
@facts_argument
@facts_option
@click.option("--installer", metavar="VERSION", help="The version of the installation media, for example 24.04.4.")
@answers()
@implemented_in("winhost.cli.lint_install")
def autoinstall() -> None:
    """Check a file for the automatic installation of Ubuntu: autoinstall.yaml, or a cloud-config with such a section.

    FACTS of the machine, or its disk manifest, supply the partitions that the file must list.
    """
