"""Arguments, options and help of `winhost models`."""

from typing import Any

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostGroup
from winhost.cli.options import at_once_option, facts_option, fleet_option, hub_option, words_argument
from winhost.cli.outputs import answers

token_option = click.option(
    "--token",
    metavar="REF",
    help="A secret reference to a token of the hub, for example env:HF_TOKEN. Gated models then rank as any other.",
)


class ModelsGroup(WinhostGroup):
    """`winhost models HOST` is `winhost models show HOST`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        option = bool(args) and args[0].startswith("-") and args[0] not in ctx.help_option_names
        return super().parse_args(ctx, ["show", *args] if option or not args else args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args and args[0] in self.commands else ["show", *args])


@click.group(cls=ModelsGroup)
def models() -> None:
    """Show which models fit the GPUs of a host, best first, or all that winhost knows."""


@models.command()
@words_argument
@facts_option
@click.option("--path", help="For this path only.", **completion.PATHS)
@click.option("--all", "everything", is_flag=True, help="Show every repository, also what does not fit, and why.")
@click.option("--model", metavar="MODEL", help="This model only: of the catalogue, ORG/NAME of the hub, or a folder.")
@token_option
@hub_option
@fleet_option
@at_once_option
@answers(wide=True)
def show(**options: Any) -> int:
    """Show which models of the catalogue fit a host, best first; without a host, the catalogue.

    Takes HOSTs from fleet.yaml, or FACTS: facts files, or folders that detect wrote. For each model: the longest usual
    context that fits, the download, the memory that is estimated on each GPU, and the verdict, as assess judges them.
    """
    from winhost.cli.models import show as run

    return run(**options)


@models.command()
@token_option
@hub_option
@answers()
def refresh(**options: Any) -> int:
    """Ask the hub for revision, files and config.json of each model, and keep them as your own catalogue.

    It is used from then on, in place of the one that comes with winhost. What cannot be asked stays as it was.
    """
    from winhost.cli.models_refresh import refresh as run

    return run(**options)
