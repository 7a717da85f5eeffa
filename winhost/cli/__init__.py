"""The command line. Each command is imported only when it is called, so that `--help` is quick.

Each family of commands has a folder. Its module `commands` declares their options and help, which is all that `--help`
and the tab key load, and names the module in the same folder that implements them.
"""

import importlib
import os
import sys
import warnings
from typing import Any

import click

from winhost import __version__
from winhost.cli.groups import WinhostGroup, log_options, show_codes
from winhost.cli.terminal import (
    PIPE_CLOSED,
    HelpFormatter,
    PipeClosed,
    discard_output,
    help_width,
    prepare_streams,
    raise_pipe_closed,
    uses_colour,
)

# Command → the first line of its help; a test compares it with the command's own.
COMMANDS = {
    "up": "Serve a MODEL on this machine, or on another.",
    "down": "Undo what `winhost up` did on a HOST.",
    "host": "Add, list, remove and test the hosts of fleet.yaml.",
    "detect": "Read HOSTS: hardware, Windows, VMs and WSL.",
    "probe": "Test what the GPUs of HOSTS can do in Linux, and add the results to the facts.",
    "assess": "Show which options work on a host, which do not, and why.",
    "report": "Write the verdicts on hosts to one HTML file, to read and share.",
    "diff": "Compare two snapshots: which facts changed, and which verdicts changed with them.",
    "facts": "Make facts files from the output of a machine's own tools.",
    "workload": "Draft a workload from a model's own files.",
    "models": "Show which models fit the GPUs of a host, best first, or all that winhost knows.",
    "weights": "Pack a model's weights smaller, so that an engine loads them sooner.",
    "explain": "Explain a reason by its CODE, or an error that you paste.",
    "known": "List the oldest and newest versions that winhost knows about, and when that was checked.",
    "plan": "Plan what would change on a host, and how each change is undone.",
    "apply": "Apply PLANS. Each change is journalled and can be rolled back.",
    "resume": "Continue a RUN that was interrupted.",
    "rollback": "Undo exactly what a RUN changed.",
    "runs": "List runs, or show one.",
    "boot": "Start the other system of a machine with two, once.",
    "bundle": "Write an offline package: a PLAN as scripts for a host where nothing may be installed.",
    "fetch": "Collect what PLAN downloads, for a host without a network.",
    "verify": "Check that hosts are still as PLANS left them.",
    "lint": "Find what is wrong in files for WSL, vLLM, containers and Ubuntu's installer, and mend it.",
    "install": "Install Ubuntu on a machine, beside Windows or instead of it, only on the disks that you name.",
    "serve": "Serve models on a target: settings with reasons, start, status, logs, test, stop.",
    "yield": "Let the models of HOST leave their GPUs to other programs, and come back.",
    "status": "Show which models the hosts serve, their state, and unfinished runs.",
    "chat": "Send a prompt to a model that is served, and print the answer as it arrives.",
    "open": "Open a port on this computer that leads to the endpoint of HOST.",
    "render": "Print the files for serving a workload in your own deployment.",
    "schema": "Print the JSON Schema of a winhost file or output format.",
    "lab": "Simulate hosts behind a real remoting endpoint.",
    "demo": "Show complete jobs on simulated hosts, in under a minute.",
}

# Family → its commands, except one with the name of the family.
_FAMILIES = {
    "look": ("detect", "probe", "assess", "report", "diff", "facts", "known", "explain", "schema"),
    "plan": ("up",),
    "change": ("apply", "resume", "rollback", "runs", "verify", "down", "boot", "bundle", "fetch"),
    "endpoint": ("chat", "open", "status", "yield"),
    "models": ("workload", "weights"),
    "lab": ("demo",),
}
_FAMILY_OF = {command: family for family, commands in _FAMILIES.items() for command in commands}

click.Context.formatter_class = HelpFormatter  # of every command, in whatever group


class Commands(WinhostGroup):
    """The top-level group, which knows its commands by name and help line, and imports the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"winhost.cli.{_FAMILY_OF.get(name, name)}.commands")
        command: click.Command = getattr(module, "yields" if name == "yield" else name)  # `yield` is a Python keyword
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        kwargs.setdefault("terminal_width", help_width())
        with raise_pipe_closed():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with raise_pipe_closed():
            return super().invoke(ctx)

    def line(self, ctx: click.Context, name: str) -> str:
        return COMMANDS[name]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        show_codes("", formatter)


@click.command(cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="winhost")
@log_options("WINHOST_DEBUG")
@click.pass_context
def winhost(context: click.Context) -> int | None:
    """Turn a Windows GPU machine into a Linux LLM endpoint by the best path that it supports, reversibly.

    Start with `winhost up`, which shows what it would change and asks once, or with `winhost demo`, which needs no
    Windows machine.
    """
    context.color = uses_colour()  # subcommands take it from this context
    if context.invoked_subcommand is not None:
        return None
    from winhost.cli.endpoint.status import overview  # loads the engine, which `--help` must not

    return overview()


def _show_warning(message: Warning | str, category: type[Warning], *where: object, **more: object) -> None:
    """Show a warning about an input that other users can write; ignore warnings of libraries."""
    from winhost.model.files import SharedInputWarning  # most commands warn of nothing

    if issubclass(category, SharedInputWarning):
        from winhost.cli.output import say  # loads more than most commands need

        say(f"warning: {message}", err=True)


def run(args: list[str] | None = None) -> int:
    """Run the command line and return its exit code: see `winhost.cli.groups`."""
    prepare_streams()
    if os.name == "posix":
        os.umask(os.umask(0o077) | 0o022)  # no other user can write to the files of winhost
    warnings.showwarning = _show_warning
    words = sys.argv[1:] if args is None else args
    try:
        code = winhost.main(args, prog_name="winhost", standalone_mode=False)
    except click.exceptions.Abort as error:
        asked = error.__cause__ is None and isinstance(error.__context__, KeyboardInterrupt | EOFError)
        click.echo("\nStopped." if asked else "Stopped.", err=True)  # the line of a question has no end yet
        return 130
    except PipeClosed:
        discard_output()
        return PIPE_CLOSED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - decided here and nowhere else
        from winhost.cli.errors import show_failure  # what only a failure needs is not loaded before it

        return show_failure(error, words)
    return code if isinstance(code, int) else 0
