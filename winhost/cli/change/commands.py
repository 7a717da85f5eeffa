"""Arguments, options and help of the commands that apply plans, inspect and undo runs, and package plans."""

import os
import shlex
from pathlib import Path

import click

from winhost.cli import completion, options
from winhost.cli.groups import WinhostCommand, implemented_in
from winhost.cli.options import declared, option, options_object
from winhost.core.dataclass import dataclass


@click.command(cls=WinhostCommand)
@click.argument("plans", nargs=-1, required=True, type=options.PATH, metavar="PLAN...")
@options.run_options
@options.at_once
@click.option("--stop-on-failure", is_flag=True, help="Start no further host once one has failed.")
@click.option("--check", "check_only", is_flag=True, help="Read the hosts and show what would be done; change nothing.")
@click.option("--max-age", type=options.AGE, help="Refuse plans older than this, for example 12h or 7d.")
@implemented_in("change.apply")
def apply() -> None:
    """Apply PLANS. Each change is journalled and can be rolled back.

    Refuses a plan if its host has changed since the plan was made. A run survives restarts and being killed: see
    `winhost runs`, then use `resume` or `rollback`. Ctrl-C, SIGTERM, closing the terminal or closing the pipe stops the
    run after the current step.

    On a terminal, apply shows the plans first and asks for each approval.
    """


@click.command(cls=WinhostCommand)
@click.argument("run_name", metavar="RUN", **completion.RUNS)
@click.option(
    "--vm",
    metavar="NAME",
    help="Assign the GPUs to this VM instead. Only while nothing has been done for the other VM.",
)
@click.option("--gpu", "gpus", multiple=True, metavar="NAME", help="Use this GPU instead, under the same condition.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Use this setting of the path instead, under the same condition.",
)
@options.run_options
@implemented_in("change.apply")
def resume() -> None:
    """Continue a RUN that was interrupted.

    Waits for anything that may still be running on the host, reads its state, and does what is left. If a later stage
    finds that a VM, GPU or setting you asked for cannot be used, choose another: the rest is planned again and shown,
    and every approval is asked for again.
    """


@click.command(cls=WinhostCommand)
@click.argument("run_name", metavar="RUN", **completion.RUNS)
@options.run_options
@implemented_in("change.apply")
def rollback() -> None:
    """Undo exactly what a RUN changed.

    Works in reverse order, also after a crash and if part of the run was undone by hand. What others use by now is kept
    and reported.
    """


@click.command(cls=WinhostCommand)
@click.argument("run_name", metavar="[RUN]", required=False, **completion.RUNS)
@options.output_options(wide=True)
@implemented_in("change.runs")
def runs() -> None:
    """List runs, or show one.

    Reads the journals in your own state folder; no host is contacted.
    """


@click.command(cls=WinhostCommand)
@click.argument("sources", nargs=-1, required=True, metavar="PLAN... [FACTS...]", **completion.HOSTS_AND_FILES)
@options.facts_files
@click.option("--details", is_flag=True, help="Show everything that was compared, not only what differs.")
@options.fleet
@options.at_once
@options.output_options(wide=True)
@options.hosts_and_facts
@implemented_in("change.verify")
def verify() -> None:
    """Check that hosts are still as PLANS left them.

    PLANS are files, or folders that plan or bundle wrote. Reads the host of each plan, or its FACTS, and compares
    property by property. Changes nothing.
    """


@click.command(cls=WinhostCommand)
@click.argument("name", metavar="[HOST]", required=False, **completion.HOSTS)
@options.run_options
@implemented_in("up.down")
def down() -> None:
    """Undo what `winhost up` did on a HOST.

    HOST is a host of fleet.yaml, or USER@ADDRESS; without one it is this machine. Rolls back the runs that up made
    there, newest first, and shows what is deleted and what stays. If it is interrupted, type it again.
    """


SYSTEMS = ("linux", "windows", "installer")


@dataclass(frozen=True)
class BootOptions:
    """The options of `winhost boot`. other: the machine's name in fleet.yaml when the other system runs; console: None
    if not stated.
    """

    host: str = declared(click.argument("host", metavar="HOST", **completion.HOSTS))
    system: str = declared(click.argument("system", type=click.Choice(SYSTEMS)))
    other: str | None = option("HOST", "The machine's other system in fleet.yaml: wait until it answers.")
    console: bool | None = declared(
        click.option(
            "--console/--without-console",
            default=None,
            help="Whether somebody can reach the machine's console (in person, or by its management controller) if it "
            "hangs.",
        )
    )
    return_after: int | None = option(
        "MINUTES",
        "On its Linux: a timer that starts Windows if winhost does not come within MINUTES of a start; 0 for none.",
        type=options.WholeNumber(0, 1440),
    )
    restart_deadline: float = declared(options.restart_deadline)
    accepted: tuple[str, ...] = declared(options.accept, ())
    fleet_file: Path | None = declared(options.fleet)


@click.command(cls=WinhostCommand)
@options_object(BootOptions, "options")
@options.output_options()
@implemented_in("change.boot")
def boot() -> None:
    """Start the other system of a machine with two, once.

    HOST is the system that runs now. winhost tells the firmware to start SYSTEM once (BootNext), checks that the
    firmware stored that, and restarts the machine. This needs --accept restart, and --console or --without-console. The
    firmware's boot order does not change, so that the next start follows it again.
    """


def _split_command(context: click.Context, option: click.Parameter, command: str | None) -> tuple[str, ...]:
    """Split a command line into the arguments of a process that runs without a shell. Raises BadParameter."""
    if command is None:
        return ()
    # On Windows, a backslash is part of a path, so POSIX rules do not apply; without them, shlex keeps quotes.
    posix = os.name != "nt"
    try:
        arguments = [argument if posix else argument.strip('"') for argument in shlex.split(command, posix=posix)]
    except ValueError as error:
        raise click.BadParameter(f"{command!r}: {error}") from error
    if not arguments:
        raise click.BadParameter("no command is named")
    return tuple(arguments)


@click.command(cls=WinhostCommand)
@click.argument("plan_file", metavar="[PLAN]", required=False, type=options.PATH)
@click.option(
    "--sign-with",
    "signing",
    metavar="CMD",
    callback=_split_command,
    help="Sign each script: CMD is run with its path as the last argument, before checksums are written.",
)
@options.output_options("FOLDER", "The folder to create.", required=True)
@implemented_in("change.offline")
def bundle() -> None:
    """Write an offline package: a PLAN as scripts for a host where nothing may be installed.

    Creates a folder with the scripts Facts, Apply, Verify and Rollback for Windows PowerShell 5.1, the plan, a readme
    and SHA-256 checksums; for WSL 2 also a folder with scripts for its Linux. Without a PLAN, the folder has the script
    Facts only, to read a host that winhost cannot reach.
    """


@dataclass(frozen=True)
class FetchOptions:
    """The options of `winhost fetch`. there: the path of the folder on the Linux that serves; platform, release: of
    that Linux.
    """

    plan_file: Path = declared(click.argument("plan_file", metavar="PLAN", type=options.PATH))
    there: str = option("PATH", "The path of the folder on the Linux that serves.", default="/srv/winhost-offline")
    platform: str = option(
        None,
        "The platform of the images to fetch.",
        default="linux/amd64",
        type=click.Choice(("linux/amd64", "linux/arm64")),
    )
    release: str | None = option(
        None,
        "Fetch packages as well, from the archive of this release, by its signed lists.",
        type=click.Choice(("ubuntu-22.04", "ubuntu-24.04", "debian-12", "debian-13")),
    )
    archive: str | None = option("URL", "A mirror of that archive, over https.")


@click.command(cls=WinhostCommand)
@options_object(FetchOptions, "options")
@options.output_options("FOLDER", "The folder to fill.", required=True)
@implemented_in("change.offline")
def fetch() -> None:
    """Collect what PLAN downloads, for a host without a network.

    Fills a folder with the images of containers, the files of models, the image of a new VM and, with --release,
    packages. Each is checked by its hash. The folder also gets checksums, and a plan.json that takes everything from
    there. If it is interrupted, run it again to go on. Carry the folder to the host, and to the computer that applies
    its plan.json.
    """
