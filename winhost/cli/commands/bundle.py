"""Arguments, options and help of `winhost bundle`."""

import os
import shlex
from pathlib import Path
from typing import Any

import click

from winhost.cli.groups import WinhostCommand
from winhost.cli.outputs import answers


def _words(context: click.Context, option: click.Parameter, command: str | None) -> tuple[str, ...]:
    """A command line as the words of a process, without a shell."""
    if command is None:
        return ()
    # Not by POSIX rules on Windows: there a backslash is part of a path. Quotes then stay, and are taken off.
    posix = os.name != "nt"
    try:
        words = [word if posix else word.strip('"') for word in shlex.split(command, posix=posix)]
    except ValueError as error:
        raise click.BadParameter(f"{command!r}: {error}") from error
    if not words:
        raise click.BadParameter("no command is named")
    return tuple(words)


@click.command(cls=WinhostCommand)
@click.argument("plan_file", metavar="[PLAN]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--sign-with",
    "signing",
    metavar="CMD",
    callback=_words,
    help="Sign each script: CMD is run with its path as the last argument, before checksums are written.",
)
@answers("FOLDER", "The folder to create.", required=True)
def bundle(**options: Any) -> int:
    """Write an offline package: a PLAN as scripts for a host where nothing may be installed.

    Creates a folder with the scripts Facts, Apply, Verify and Rollback for Windows PowerShell 5.1, the plan, a readme
    and SHA-256 checksums; for WSL 2 also a folder with scripts for its Linux. Without a PLAN, the folder has the script
    Facts only, to read a host that winhost cannot reach.
    """
    from winhost.cli.bundle import bundle as run

    return run(**options)
