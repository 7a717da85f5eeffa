"""Arguments, options and help of commands that use an endpoint."""

from pathlib import Path

import click

from winhost.cli import completion, options
from winhost.cli.groups import WinhostCommand, implemented_in
from winhost.cli.options import declared, flag, option, options_object
from winhost.core.dataclass import dataclass


@dataclass(frozen=True)
class ChatOptions:
    """The model, key and limits of a talk."""

    model: str | None = option("NAME", "The model, by the name that clients use. Default: the first one.")
    system: str | None = option("TEXT", "A system message before the prompt.")
    max_tokens: int | None = option("N", "The most tokens of an answer.", type=options.WholeNumber(1, 1_000_000))
    api_key: str | None = declared(options.client_key)


@click.command(cls=WinhostCommand)
@click.argument("words", metavar="[HOST] [PROMPT]", nargs=-1, **completion.HOSTS)
@options_object(ChatOptions, "asked")
@options.fleet
@options.output_options()
@implemented_in("endpoint.chat")
def chat() -> None:
    """Talk to a model that is served, as its answer comes.

    HOST can be left out if only one host serves. PROMPT is `-`, or a pipe, to read it from stdin; without PROMPT, a
    terminal gets a conversation, which Ctrl-D ends. A model that is asleep wakes up for it.
    """


@click.command(cls=WinhostCommand)
@click.argument("host", metavar="[HOST]", required=False, **completion.HOSTS)
@click.option(
    "--port",
    metavar="PORT",
    type=options.WholeNumber(1, 65_535),
    help="The port on 127.0.0.1. Default: that of the endpoint, or a free one.",
)
@options.fleet
@implemented_in("endpoint.open")
def open() -> None:  # noqa: A001 - the command is called so
    """Open a port on this computer that leads to what HOST serves.

    Without HOST, it is the only host that serves. Runs until Ctrl-C, through SSH, and prints the base URL and a
    request. Only this computer reaches the port. If the endpoint needs no tunnel, it says so and ends.
    """


@dataclass(frozen=True)
class StatusOptions:
    """The hosts to ask, how often, and whether to test what serves there. every: None if not specified."""

    hosts: tuple[str, ...] = declared(click.argument("hosts", metavar="[HOST]...", nargs=-1, **completion.HOSTS), ())
    watch: bool = flag("Ask again and again, until Ctrl-C: in a terminal the screen is redrawn.")
    every: int | None = option(
        "SECONDS", "With --watch: how often to look.", type=options.WholeNumber(1, 3600), show_default="10"
    )
    test: bool = flag(
        "With --watch: test what serves, as winhost serve test does, once after each restart of its machine and each "
        "change of a version since its endpoint was last found to answer."
    )
    api_key: str | None = declared(options.client_key)
    at_once: int = declared(options.at_once)
    fleet_file: Path | None = declared(options.fleet)


@click.command(cls=WinhostCommand)
@options_object(StatusOptions, "asked")
@options.output_options()
@implemented_in("endpoint.status")
def status() -> None:
    """Show what is served where, how it is, and what is unfinished.

    Asks HOSTS, or those that serve by the journals of this computer. If one cannot be reached, it shows why. Names the
    next command for each host. Changes nothing. With --watch, if stdout is no terminal, it prints a line with the time
    whenever something of a host has changed.
    """


@click.command("yield", cls=WinhostCommand)
@click.argument("target", metavar="HOST", **completion.HOSTS)
@click.argument("mode", metavar="[now|auto|never]", required=False, type=click.Choice(("now", "auto", "never")))
@click.option(
    "--within",
    type=options.DURATION,
    default="5m",
    show_default=True,
    help="How long to wait until all models have left.",
)
@options.target
@implemented_in("serve.change")
def yields() -> None:
    """Let the models of HOST leave their GPUs to something else, and come back.

    now: they leave, and requests get 503 with Retry-After. never: they stay, whoever asks. auto: they leave when a key
    that may do so asks, as the watcher on a Windows desktop does. Without one of these, the command shows which one
    holds. now and never hold until the gateway stops.
    """
