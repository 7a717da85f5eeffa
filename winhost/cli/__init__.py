"""The command line: each command in its own module, imported only when it is called, so that `--help` is quick."""

import importlib
import os
import sys
from typing import Any

import click

from winhost import __version__

# Command → the first line of its help, which a test holds equal to the command's own.
COMMANDS = {
    "detect": "Read what HOSTS are.",
    "assess": "Say which ways work on a host, which do not, and why.",
    "diff": "Say what changed between two readings, and which verdicts changed because of it.",
    "facts": "Make facts of a machine from what its own tools print.",
    "explain": "Tell the whole story of a reason's CODE.",
    "plan": "Write down what would change on a host, and how it is taken back.",
    "apply": "Do what PLANS say, with a journal and a way back.",
    "resume": "Go on with a RUN that was interrupted.",
    "rollback": "Undo exactly what a RUN changed.",
    "runs": "List runs, or show one.",
    "bundle": "Write scripts that do a PLAN by hand, where nothing may be installed.",
    "verify": "Say whether what a PLAN wants is still so.",
    "schema": "Print the JSON Schema of one of winhost's file formats.",
    "lab": "Simulated hosts behind a real remoting endpoint.",
    "demo": "Tell the main job on simulated hosts, in under a minute.",
}


class Commands(click.Group):
    """Knows its commands by name and help line, and imports the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"winhost.cli.{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"no command {args[0]!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="winhost")
def winhost() -> None:
    """Takes a Windows GPU machine to a Linux LLM endpoint by the best path it can really support, undoably.

    Begin with `winhost demo`, which needs no Windows, or with `winhost detect HOST`, which changes nothing.
    """


def run(args: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0 success, 1 failure, 2 wrong usage, 3 refused by verdict, 4 drift, 5 unreachable; over several hosts the highest.
    """
    try:
        code = winhost.main(args, prog_name="winhost", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("Stopped.", err=True)
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError:
        # Whoever read us has enough. Python would complain once more while it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 - decided here and nowhere else
        return _told(error, as_json="--json" in (sys.argv[1:] if args is None else args))
    return code if isinstance(code, int) else 0


def _told(error: Exception, as_json: bool) -> int:
    from winhost.model.errors import WinhostError

    if not isinstance(error, WinhostError):
        raise error
    from winhost.cli.output import show_error

    show_error(error, as_json)
    return int(error.exit_code)
