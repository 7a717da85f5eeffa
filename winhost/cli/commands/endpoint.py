"""Arguments, options and help of commands that use an endpoint."""

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand, does
from winhost.cli.options import (
    Duration,
    WholeNumber,
    at_once_option,
    fleet_option,
    option,
    options_object,
    target_options,
)
from winhost.cli.outputs import answers
from winhost.core.dataclass import dataclass


@dataclass(frozen=True)
class ChatOptions:
    """The model, key and limits of a talk."""

    model: str | None = option(
        "--model", metavar="NAME", help="The model, by the name that clients use. Default: the first one."
    )
    system: str | None = option("--system", metavar="TEXT", help="A system message before the prompt.")
    max_tokens: int | None = option(
        "--max-tokens", type=WholeNumber(1, 1_000_000), help="The most tokens of an answer."
    )
    api_key: str | None = option(
        "--api-key",
        metavar="REF",
        help="A secret reference to the API key, such as env:NAME. Default: the one that the plan was made with.",
    )


@click.command(cls=WinhostCommand)
@click.argument("words", metavar="[HOST] [PROMPT]", nargs=-1, **completion.HOSTS)
@options_object(ChatOptions, "asked")
@fleet_option
@answers()
@does("chat")
def chat() -> None:
    """Talk to a model that is served, as its answer comes.

    HOST may be left out where one host serves. PROMPT is `-` to read it from stdin, as a pipe does by itself; without
    it, a terminal gets a conversation, which Ctrl-D ends. A model that is asleep wakes for it.
    """


@click.command(cls=WinhostCommand)
@click.argument("host", metavar="[HOST]", required=False, **completion.HOSTS)
@click.option(
    "--port", type=WholeNumber(1, 65_535), help="The port on 127.0.0.1. Default: that of the endpoint, or a free one."
)
@fleet_option
@does("endpoint")
def open() -> None:  # noqa: A001 - the command is called so
    """Open a port on this computer that leads to what HOST serves.

    Default: the only host that serves. Runs until Ctrl-C, through SSH, and prints the base URL and a request. Only
    this computer reaches the port. If the endpoint can be reached without a tunnel, it says so and ends.
    """


@click.command(cls=WinhostCommand)
@click.argument("hosts", metavar="[HOST]...", nargs=-1, **completion.HOSTS)
@click.option("--watch", is_flag=True, help="Ask again and again, until Ctrl-C: in a terminal the screen is redrawn.")
@click.option(
    "--every",
    type=click.IntRange(1, 3600),
    show_default="10",
    help="With --watch: seconds from one look to the next.",
)
@click.option(
    "--test",
    is_flag=True,
    help="With --watch: test what serves, as winhost serve test does, once after each restart of its machine and each "
    "change of a version since its endpoint was last found to answer.",
)
@click.option(
    "--api-key",
    "key",
    metavar="REF",
    help="With --test: an API key, such as env:API_KEY. Default: one that winhost made.",
)
@at_once_option
@fleet_option
@answers()
@does("status")
def status() -> None:
    """Show what is served where, how it is, and what is unfinished.

    Asks the hosts that serve by the journals of this computer, or HOSTS; one that cannot be reached is shown with the
    reason. Each host has its next command. Changes nothing. With --watch, and where stdout is no terminal, a host has a
    line with the time whenever something of it has changed.
    """


@click.command("yield", cls=WinhostCommand)
@click.argument("target", metavar="HOST", **completion.HOSTS)
@click.argument("mode", metavar="[now|auto|never]", required=False, type=click.Choice(("now", "auto", "never")))
@click.option(
    "--within", type=Duration(), default="5m", show_default=True, help="How long to wait until all models have left."
)
@target_options
@does("serve_change")
def yields() -> None:
    """Let the models of HOST leave their GPUs to something else, and come back.

    now: they leave, and requests get 503 with Retry-After; never: they stay, whoever asks; auto: they leave when a key
    for it asks, as the watcher on a Windows does. Without one of these it shows how it is. now and never hold until
    the gateway stops.
    """
