"""Arguments, options and help of `winhost chat`."""

from typing import Any

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand
from winhost.cli.options import WholeNumber, fleet_option
from winhost.cli.outputs import answers


@click.command(cls=WinhostCommand)
@click.argument("words", metavar="[HOST] [PROMPT]", nargs=-1, **completion.HOSTS)
@click.option("--model", metavar="NAME", help="The model, by the name that clients use. Default: the first one.")
@click.option("--system", metavar="TEXT", help="A system message before the prompt.")
@click.option("--max-tokens", type=WholeNumber(1, 1_000_000), help="The most tokens of an answer.")
@click.option(
    "--api-key",
    metavar="REF",
    help="A secret reference to the API key, such as env:NAME. Default: the one that the plan was made with.",
)
@fleet_option
@answers()
def chat(**options: Any) -> int:
    """Talk to a model that is served, as its answer comes.

    HOST may be left out where one host serves. PROMPT is `-` to read it from stdin, as a pipe does by itself; without
    it, a terminal gets a conversation, which Ctrl-D ends. A model that is asleep wakes for it.
    """
    from winhost.cli.chat import chat as run

    return run(**options)
