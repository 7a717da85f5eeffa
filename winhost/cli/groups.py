"""Commands and those that hold them: a misspelt one is corrected, and the overview says of each the whole sentence."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from winhost.cli.exit_codes import show_codes

F = TypeVar("F", bound=Callable[..., Any])


def log_options(variable: str | None = None) -> Callable[[F], F]:
    """`-v` and `--debug`: the log of all calls to hosts, on stderr. variable: which stands for `--debug`, too."""

    def show(context: click.Context, option: click.Parameter, asked: bool) -> None:
        if asked and not context.resilient_parsing:
            from winhost.cli.log_lines import show_log  # with logging, which nobody else waits for

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


class WinhostCommand(click.Command):
    """A command whose help ends with its exit codes."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _, _, words = ctx.command_path.partition(" ")
        show_codes(words, formatter)


class WinhostGroup(click.Group):
    """A group of commands in our words."""

    command_class = WinhostCommand

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            from winhost.model.errors import did_you_mean, visible  # which `winhost --help` does without

            ctx.fail(f"no command '{visible(args[0])}'{did_you_mean(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.line(ctx, name)) for name in self.list_commands(ctx)])

    def line(self, ctx: click.Context, name: str) -> str:
        """The line of a command in the overview."""
        command = self.get_command(ctx, name)
        return command.get_short_help_str(limit=1000) if command else ""
