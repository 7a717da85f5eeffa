"""The classes of commands and groups: their help ends with the exit codes, and they correct misspelt names."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from typing import Any, TypeVar

import click

GENERAL: Mapping[int, str] = {
    0: "success",
    1: "failure, or a run that stopped after changing something",
    2: "wrong usage: nothing was done",
    3: "refused by a verdict",
    4: "drift: something differs, or is not as planned",
    5: "a host is unreachable",
    130: "stopped with Ctrl-C",
    141: "nobody reads the output any more (closed pipe)",
}
_COMMON_CODES = (0, 1, 2, 130, 141)
_UNREACHABLE = {5: GENERAL[5]}
_RUN = {
    3: "refused by a verdict, possibly one found at a later stage",
    4: "a host has changed since it was planned, or is not as planned in the end",
    **_UNREACHABLE,
}
_LINT = {
    0: "no defect is left; advice does not count",
    1: "a defect is left: something does not start, is not as written, exposes or destroys; with --strict: or advice",
}

# Command → the meaning of the exit codes that it has, or that differ for it. A test checks that it returns no others.
COMMAND_CODES: Mapping[str, Mapping[int, str]] = {
    "host add": {1: "failure, or the host cannot be managed as it is", **_UNREACHABLE},
    "host list": _UNREACHABLE,
    "host remove": _UNREACHABLE,
    "host test": {1: "failure, or a host cannot be managed as it is", **_UNREACHABLE},
    "detect": _UNREACHABLE,
    "probe": _UNREACHABLE,
    "assess": {3: "no option, or not that of --path, works on a host and meets the requirements", **_UNREACHABLE},
    "models show": _UNREACHABLE,
    "report": _UNREACHABLE,
    "diff": {0: "no difference", 4: "the host or its verdicts changed"},
    "explain": {0: "explained", 1: "nothing is known of the text"},
    "plan": {0: "planned", 3: "refused by a verdict, or the option must be named with --path", **_UNREACHABLE},
    "up": {0: "everything is served", **_RUN},
    "apply": {0: "applied; with --check: can be applied", **_RUN},
    "resume": {0: "applied", **_RUN},
    "rollback": {
        0: "rolled back",
        1: "failure, or partly rolled back: later changes depend on the rest, or it could not be checked",
        4: "something is neither as the run left it nor in its original state",
        **_UNREACHABLE,
    },
    "down": {
        0: "undone, or nothing to undo",
        1: "failure, or partly undone: later changes depend on the rest, or it could not be checked",
        4: "something is neither as up left it nor in its original state",
        **_UNREACHABLE,
    },
    "boot": {0: "restarting, or the other system is up", 1: "failure, or the system of before came up", **_UNREACHABLE},
    "verify": {0: "as planned", 4: "something is not as planned", **_UNREACHABLE},
    "lint wslconfig": _LINT,
    "lint wslconf": _LINT,
    "lint autoinstall": _LINT,
    "install plan": {3: "the host or its disks are not ready for it"},
    "install bmc": {3: "the BMC is not shown to be that of the host, or has no free drive", **_UNREACHABLE},
    "install media": {
        1: "the new system was not seen in time",
        3: "the media would not start, or no wipe was consented to",
    },
    "render compose": {3: "no profile can serve the workload on that machine"},
    "render kubernetes": {3: "that machine cannot be a node that serves the workload"},
    "lint serve": _LINT,
    "lint docker-daemon": _LINT,
    "lint cdi": _LINT,
    "serve profile": {3: "no profile can serve the workload on that host"},
    "serve up": {0: "everything serves", 1: "something did not start, or not in time", **_UNREACHABLE},
    "serve status": {0: "every model is served", 4: "something does not serve", **_UNREACHABLE},
    "serve logs": _UNREACHABLE,
    **{f"serve keys {verb}": _UNREACHABLE for verb in ("list", "add", "limit", "revoke")},
    "serve test": {0: "every request was answered as it should be", 1: "one was not", **_UNREACHABLE},
    "status": {4: "something does not serve", **_UNREACHABLE},
    "chat": {1: "failure, or no whole answer", **_UNREACHABLE},
    "open": _UNREACHABLE,
    "yield": {1: "failure, or a model that did not leave in time", **_UNREACHABLE},
    "serve down": {0: "stopped", 1: "something did not stop in time", **_UNREACHABLE},
}


def exit_codes(command: str) -> Mapping[int, str]:
    """Return the exit codes of a command with their meanings. command: the words after `winhost`; empty for all
    codes.
    """
    if not command:
        return GENERAL
    own_codes = COMMAND_CODES.get(command, {})
    return {code: own_codes.get(code, GENERAL[code]) for code in GENERAL if code in own_codes or code in _COMMON_CODES}


def show_codes(command: str, formatter: click.HelpFormatter) -> None:
    """Write the exit codes below the help of a command that has codes of its own."""
    if command and command not in COMMAND_CODES:
        return
    codes = exit_codes(command)
    with formatter.section("Exit codes (highest of all hosts)" if 5 in codes else "Exit codes"):
        formatter.write_dl([(str(code), meaning) for code, meaning in codes.items()])


F = TypeVar("F", bound=Callable[..., Any])


def log_options(variable: str | None = None) -> Callable[[F], F]:
    """Add `-v` and `--debug`, which log calls to hosts on stderr. variable: the environment variable for `--debug`."""

    def enable(context: click.Context, option: click.Parameter, is_set: bool) -> None:
        if is_set and not context.resilient_parsing:
            from winhost.cli.log_lines import show_log  # loads logging, which no other command needs

            context.meta[_VERBOSE_ASKED] = True
            show_log(context, debug=option.name == "debug")

    def decorate(command: F) -> F:
        for option in (
            click.option("--debug", is_flag=True, envvar=variable, expose_value=False, callback=enable, help=_DEBUG),
            click.option("-v", "--verbose", is_flag=True, expose_value=False, callback=enable, help=_VERBOSE),
        ):
            command = option(command)
        return command

    return decorate


def is_verbose() -> bool:
    """Tell whether `-v` or `--debug` was typed: then hashes and full values are shown."""
    context = click.get_current_context(silent=True)
    return context is not None and _VERBOSE_ASKED in context.meta


_VERBOSE_ASKED = "winhost.verbose"
_VERBOSE = "Show each call to a host on stderr: what, how long, how many bytes."
_DEBUG = "Show all that is known of calls and connections, without secrets, for a bug report."


def implemented_in(module: str) -> Callable[[Callable[[], None]], Callable[..., Any]]:
    """Make a command call the function with its name in `winhost.cli.<module>`, which is imported only when it runs."""

    def decorate(declaration: Callable[[], None]) -> Callable[..., Any]:
        @wraps(declaration)
        def run(**options: Any) -> Any:
            return getattr(import_module(f"winhost.cli.{module}"), declaration.__name__)(**options)

        vars(run)["module"] = module
        return run

    return decorate


@contextmanager
def _add_context(ctx: click.Context) -> Iterator[None]:
    """Add the command to errors of click's parser, which names none for an option without its value."""
    try:
        yield
    except click.UsageError as error:
        error.ctx = error.ctx or ctx
        raise


class WinhostCommand(click.Command):
    """A command whose help groups the options, says which may be repeated, and ends with the exit codes."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        for each in self.params:
            # The help of `-o` says itself that it may be given twice.
            if isinstance(each, click.Option) and each.multiple and each.name != "outputs":
                each.help = f"{each.help} May be repeated."

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _add_context(ctx):
            return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for each in self.get_params(ctx):
            if isinstance(each, click.Option) and (record := each.get_help_record(ctx)) is not None:
                sections.setdefault(vars(each).get("section", "Options"), []).append(record)
        for section, records in sections.items():
            with formatter.section(section):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _, _, command = ctx.command_path.partition(" ")
        show_codes(command, formatter)


class WinhostGroup(click.Group):
    """A group that shows the full help line of each command, and corrects misspelt commands."""

    command_class = WinhostCommand

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _add_context(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            from winhost.model.errors import did_you_mean, visible  # `winhost --help` must not load it

            ctx.fail(f"no command '{visible(args[0])}'{did_you_mean(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.line(ctx, name)) for name in self.list_commands(ctx)])

    def line(self, ctx: click.Context, name: str) -> str:
        """Return the help line of a command in the list of commands."""
        command = self.get_command(ctx, name)
        return command.get_short_help_str(limit=1000) if command else ""
