"""Commands and groups: help that ends with the exit codes, and misspelt names that are corrected."""

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
_EVERYWHERE = (0, 1, 2, 130, 141)
_UNREACHED = {5: GENERAL[5]}
_RUN = {
    3: "refused by a verdict, possibly one found at a later stage",
    4: "a host has changed since it was planned, or is not as planned in the end",
    **_UNREACHED,
}
_LINT = {
    0: "no defect is left; advice does not count",
    1: "a defect is left: something does not start, is not as written, exposes or destroys; with --strict: or advice",
}

# Command → what a code says of it alone. A test holds each command to those.
OWN: Mapping[str, Mapping[int, str]] = {
    "host add": {1: "failure, or the host cannot be managed as it is", **_UNREACHED},
    "host list": _UNREACHED,
    "host remove": _UNREACHED,
    "host test": {1: "failure, or a host cannot be managed as it is", **_UNREACHED},
    "detect": _UNREACHED,
    "probe": _UNREACHED,
    "assess": {3: "no option, or not that of --path, works on a host and meets the requirements", **_UNREACHED},
    "models show": _UNREACHED,
    "report": _UNREACHED,
    "diff": {0: "no difference", 4: "the host or its verdicts changed"},
    "explain": {0: "explained", 1: "nothing is known of the text"},
    "plan": {0: "planned", 3: "refused by a verdict, or the option must be named with --path", **_UNREACHED},
    "up": {0: "everything is served", **_RUN},
    "apply": {0: "applied; with --check: can be applied", **_RUN},
    "resume": {0: "applied", **_RUN},
    "rollback": {
        0: "rolled back",
        1: "failure, or partly rolled back: later changes depend on the rest, or it could not be checked",
        4: "something is neither as the run left it nor in its original state",
        **_UNREACHED,
    },
    "down": {
        0: "undone, or nothing to undo",
        1: "failure, or partly undone: later changes depend on the rest, or it could not be checked",
        4: "something is neither as up left it nor in its original state",
        **_UNREACHED,
    },
    "boot": {0: "restarting, or the other system is up", 1: "failure, or the system of before came up", **_UNREACHED},
    "verify": {0: "as planned", 4: "something is not as planned", **_UNREACHED},
    "lint wslconfig": _LINT,
    "lint wslconf": _LINT,
    "lint autoinstall": _LINT,
    "install plan": {3: "the host or its disks are not ready for it"},
    "install bmc": {3: "the BMC is not shown to be that of the host, or has no free drive", **_UNREACHED},
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
    "serve up": {0: "everything serves", 1: "something did not start, or not in time", **_UNREACHED},
    "serve status": {0: "every model is served", 4: "something does not serve", **_UNREACHED},
    "serve logs": _UNREACHED,
    **{f"serve keys {verb}": _UNREACHED for verb in ("list", "add", "limit", "revoke")},
    "serve test": {0: "every request was answered as it should be", 1: "one was not", **_UNREACHED},
    "status": {4: "something does not serve", **_UNREACHED},
    "chat": {1: "failure, or no whole answer", **_UNREACHED},
    "open": _UNREACHED,
    "yield": {1: "failure, or a model that did not leave in time", **_UNREACHED},
    "serve down": {0: "stopped", 1: "something did not stop in time", **_UNREACHED},
}


def codes_of(command: str) -> Mapping[int, str]:
    """Return the exit codes of a command, by its words behind `winhost`; of `winhost` itself, all."""
    if not command:
        return GENERAL
    own = OWN.get(command, {})
    return {code: own.get(code, GENERAL[code]) for code in GENERAL if code in own or code in _EVERYWHERE}


def show_codes(command: str, formatter: click.HelpFormatter) -> None:
    """Write the exit codes below the help of a command that has codes of its own."""
    if command and command not in OWN:
        return
    codes = codes_of(command)
    with formatter.section("Exit codes (highest of all hosts)" if 5 in codes else "Exit codes"):
        formatter.write_dl([(str(code), meaning) for code, meaning in codes.items()])


F = TypeVar("F", bound=Callable[..., Any])


def log_options(variable: str | None = None) -> Callable[[F], F]:
    """Add `-v` and `--debug`, which log calls to hosts on stderr. variable: the environment variable for `--debug`."""

    def show(context: click.Context, option: click.Parameter, asked: bool) -> None:
        if asked and not context.resilient_parsing:
            from winhost.cli.log_lines import show_log  # loads logging, which no other command needs

            context.meta[_VERBOSE_ASKED] = True
            show_log(context, debug=option.name == "debug")

    def decorate(command: F) -> F:
        for option in (
            click.option("--debug", is_flag=True, envvar=variable, expose_value=False, callback=show, help=_DEBUG),
            click.option("-v", "--verbose", is_flag=True, expose_value=False, callback=show, help=_VERBOSE),
        ):
            command = option(command)
        return command

    return decorate


def is_verbose() -> bool:
    """Tell whether `-v` or `--debug` was given: then hashes are shown, and values are whole."""
    context = click.get_current_context(silent=True)
    return context is not None and _VERBOSE_ASKED in context.meta


_VERBOSE_ASKED = "winhost.verbose"
_VERBOSE = "Show each call to a host on stderr: what, how long, how many bytes."
_DEBUG = "Show all that is known of calls and connections, without secrets, for a bug report."


def does(module: str) -> Callable[[Callable[[], None]], Callable[..., Any]]:
    """Let a command call the function of its name in `winhost.cli.<module>`, which is imported only then."""

    def decorate(declared: Callable[[], None]) -> Callable[..., Any]:
        @wraps(declared)
        def run(**options: Any) -> Any:
            return getattr(import_module(f"winhost.cli.{module}"), declared.__name__)(**options)

        vars(run)["module"] = module
        return run

    return decorate


@contextmanager
def _errors_of(ctx: click.Context) -> Iterator[None]:
    """Add the command to errors of click's parser, which names none for an option without its value."""
    try:
        yield
    except click.UsageError as error:
        error.ctx = error.ctx or ctx
        raise


class WinhostCommand(click.Command):
    """A command whose help groups options, says which may be repeated, and ends with its exit codes."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        for each in self.params:
            if isinstance(each, click.Option) and each.multiple and each.name != "outputs":  # of `-o`, two make sense
                each.help = f"{each.help} May be repeated."

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _errors_of(ctx):
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
        _, _, words = ctx.command_path.partition(" ")
        show_codes(words, formatter)


class WinhostGroup(click.Group):
    """A group whose commands are listed whole, and whose misspelt commands are corrected."""

    command_class = WinhostCommand

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _errors_of(ctx):
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
        """The line of a command in the overview."""
        command = self.get_command(ctx, name)
        return command.get_short_help_str(limit=1000) if command else ""
