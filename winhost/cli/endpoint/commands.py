"""Arguments, options and help of commands that use an endpoint."""

from pathlib import Path

import click

from winhost.cli import completion, options
from winhost.cli.groups import WinhostCommand, implemented_in
from winhost.cli.options import declared, flag, option, options_object
from winhost.core.dataclass import dataclass


@dataclass(frozen=True)
class ChatOptions:
    """The model, API key and limits of a conversation."""

    model: str | None = option("NAME", "The model, by the name that clients use. Default: the first one.")
    system: str | None = option("TEXT", "A system message before the prompt.")
    max_tokens: int | None = option(
        "N", "The maximum number of tokens of an answer.", type=options.WholeNumber(1, 1_000_000)
    )
    api_key: str | None = declared(options.client_key)


@click.command(cls=WinhostCommand)
@click.argument("words", metavar="[HOST] [PROMPT]", nargs=-1, **completion.HOSTS)
@options_object(ChatOptions, "options")
@options.fleet
@options.output_options()
@implemented_in("endpoint.chat")
def chat() -> None:
    """Send a prompt to a model that is served, and print the answer as it arrives.

    You can omit HOST if only one host serves. With `-` or in a pipe, winhost reads PROMPT from stdin. Without PROMPT, a
    terminal starts a conversation, which Ctrl-D ends. A model that is asleep wakes up for the prompt.
    """


@click.command(cls=WinhostCommand)
@click.argument("host", metavar="[HOST]", required=False, **completion.HOSTS)
@click.option(
    "--port",
    metavar="PORT",
    type=options.WholeNumber(1, 65_535),
    help="The port on 127.0.0.1. Default: that of the endpoint, or any free port.",
)
@options.fleet
@implemented_in("endpoint.open")
def open() -> None:  # noqa: A001 - the command is called so
    """Open a port on this computer that leads to the endpoint of HOST.

    Without HOST, the command takes the only host that serves. It forwards connections through SSH until Ctrl-C, and
    prints the base URL and a request. Only this computer can reach the port. If the endpoint needs no tunnel, the
    command says so and ends.
    """


@dataclass(frozen=True)
class StatusOptions:
    """The hosts to ask, how often, and whether to test their endpoints. every: None if not specified."""

    hosts: tuple[str, ...] = declared(click.argument("hosts", metavar="[HOST]...", nargs=-1, **completion.HOSTS), ())
    watch: bool = flag("Ask repeatedly until Ctrl-C. A terminal redraws the screen.")
    every: int | None = option(
        "SECONDS",
        "With --watch: the seconds between two requests.",
        type=options.WholeNumber(1, 3600),
        show_default="10",
    )
    test: bool = flag(
        "With --watch: test each endpoint, as winhost serve test does, once after each restart of its machine and each "
        "change of a version since the last passed test."
    )
    api_key: str | None = declared(options.client_key)
    at_once: int = declared(options.at_once)
    fleet_file: Path | None = declared(options.fleet)


@click.command(cls=WinhostCommand)
@options_object(StatusOptions, "options")
@options.output_options()
@implemented_in("endpoint.status")
def status() -> None:
    """Show which models the hosts serve, their state, and unfinished runs.

    Asks HOSTS, or the hosts that serve according to the journals of this computer. If a host cannot be reached, the
    command shows why. It names the next command for each host, and changes nothing. With --watch, if stdout is no
    terminal, it prints a line with the time whenever the state of a host has changed.
    """


@click.command("yield", cls=WinhostCommand)
@click.argument("target", metavar="HOST", **completion.HOSTS)
@click.argument("mode", metavar="[now|auto|never]", required=False, type=click.Choice(("now", "auto", "never")))
@click.option(
    "--within",
    "timeout",
    type=options.DURATION,
    default="5m",
    show_default=True,
    help="How long to wait until all models have left their GPUs.",
)
@options.target
@implemented_in("serve.change")
def yields() -> None:
    """Let the models of HOST leave their GPUs to other programs, and come back.

    now: they leave, and requests get 503 with Retry-After. never: they stay, whatever clients request. auto: they leave
    when a client with a key for this requests it, as the watcher on a Windows desktop does. Without a mode, the command
    shows the present one. The modes now and never last until the gateway stops.
    """
