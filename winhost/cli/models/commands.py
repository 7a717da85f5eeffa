"""Arguments, options and help of `winhost models`, `winhost workload` and `winhost weights`."""

from collections.abc import Callable
from typing import Any

import click

from winhost.cli import options
from winhost.cli.groups import WinhostGroup, implemented_in
from winhost.cli.options import declared, flag, option, options_object
from winhost.core.dataclass import dataclass


class ModelsGroup(WinhostGroup):
    """A group that runs `winhost models HOST` as `winhost models show HOST`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        option = bool(args) and args[0].startswith("-") and args[0] not in ctx.help_option_names
        return super().parse_args(ctx, ["show", *args] if option or not args else args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args and args[0] in self.commands else ["show", *args])


@click.group(cls=ModelsGroup)
def models() -> None:
    """Show which models fit the GPUs of a host, best first, or all that winhost knows."""


@dataclass(frozen=True)
class ModelOptions:
    """The models to show, and the hub for models that the catalogue does not contain."""

    path: str | None = declared(options.path_filter)
    everything: bool = flag("Show every repository, including those that do not fit, and why.", name="--all")
    model: str | None = option("MODEL", "This model only: a name in the catalogue, ORG/NAME on the hub, or a folder.")
    token: str | None = declared(options.token)
    hub: str = declared(options.hub, "")


@models.command()
@options.hosts_or_facts
@options.facts_files
@options_object(ModelOptions, "options")
@options.fleet
@options.at_once
@options.output_options(wide=True)
@options.hosts_and_facts
@implemented_in("models.models")
def show() -> None:
    """Show which models of the catalogue fit a host, best first; without a host, the catalogue.

    Takes HOSTs from fleet.yaml, or FACTS: facts files, or folders that detect wrote. Shows for each model the longest
    usual context that fits, the download, the estimated memory on each GPU, and the verdict that assess gives.
    """


@models.command()
@options.token
@options.hub
@options.output_options()
@implemented_in("models.models")
def refresh() -> None:
    """Read the revision, files and config.json of each model from the hub, and save them as your own catalogue.

    winhost then uses your catalogue instead of its own. A model that the hub does not return keeps its earlier entry.
    """


@click.group(cls=WinhostGroup)
def workload() -> None:
    """Draft a workload from a model's own files."""


@dataclass(frozen=True)
class DraftOptions:
    """The model of a workload, its context and its requests. context: None for the longest that the model supports."""

    model: str = declared(click.argument("model", metavar="MODEL"))
    revision: str = option(
        "REVISION", "A branch, tag or commit; the file gets the commit that it points to now.", default="main"
    )
    token: str | None = declared(options.token)
    hub: str = declared(options.hub, "")
    context: int | None = option(
        "TOKENS", "The length of the longest sequence.", type=options.WholeNumber(1, 100_000_000)
    )
    sequences: int | None = option(
        "N",
        "How many sequences at once, each at full context. With --context only.",
        type=options.WholeNumber(1, 65_536),
    )
    gpus: int | None = option(
        "N", "How many GPUs share each layer. With --context only.", type=options.WholeNumber(1, 64)
    )


@workload.command()
@options_object(DraftOptions, "options")
@options.force
@options.output_options("FILE", "The workload file to write; without it, winhost prints the text.")
@implemented_in("models.models")
def init() -> None:
    """Draft a workload file for MODEL, which is ORG/NAME on Hugging Face, or a folder such as ./Qwen3-8B.

    Reads its config.json, the list of its files and the headers of its safetensors files: some kilobytes, no weights.
    Pins the commit, and lists what it assumed and what to check: a licence to accept, pickles, code that would run. A
    folder has no commit: a plan pins each of its files by its hash. Edit the file, then see what could serve it:
    winhost assess HOST --workload FILE
    """


model_argument = click.argument("model", metavar="MODEL", type=options.PATH)
python_option: Callable[..., Any] = click.option(
    "--python", metavar="PATH", default="python3", show_default=True, help="The Python of an engine, with torch."
)


@click.group(cls=WinhostGroup)
def weights() -> None:
    """Pack a model's weights smaller, so that an engine loads them sooner."""


@weights.command()
@model_argument
@python_option
@click.option(
    "--replace",
    is_flag=True,
    help="Then delete each safetensors file of MODEL whose packed file, read from disk, decodes to the same bytes.",
)
@options.output_options("FOLDER", "The folder to write.", required=True)
@implemented_in("models.weights")
def pack() -> None:
    """Pack the safetensors files of MODEL, a folder, on the GPU of this machine.

    The output folder gets all files of the model, and the loader as a wheel. Without --replace, MODEL stays as it is.
    If the command is interrupted, run it again to continue.
    """


@weights.command()
@model_argument
@python_option
@options.output_options("FOLDER", "The folder to write.", required=True)
@implemented_in("models.weights")
def unpack() -> None:
    """Write the original files of MODEL, a packed folder, bit for bit."""


@weights.command()
@model_argument
@python_option
@options.output_options()
@implemented_in("models.weights")
def verify() -> None:
    """Decode every tensor of MODEL, a packed folder, and compare it with the original's SHA-256."""


@weights.command("list")
@model_argument
@options.output_options()
@implemented_in("models.weights")
def list_() -> None:
    """List the packed files of MODEL, a folder, and their sizes. Needs no GPU: reads and checks only the headers."""
