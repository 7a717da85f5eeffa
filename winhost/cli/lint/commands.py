"""Arguments, options and help of `winhost lint`."""

from pathlib import Path
from typing import Any

import click

from winhost.cli import options
from winhost.cli.groups import WinhostGroup, implemented_in
from winhost.cli.options import declared, flag, option, options_object
from winhost.core.dataclass import dataclass

file_argument = click.argument("file", metavar="FILE|-", type=options.PATH)
facts_argument = click.argument("facts", metavar="[FACTS]", required=False, type=options.PATH)
version_option = click.option(
    "--wsl", "version", metavar="VERSION", help="The WSL version that will read the file, for example 2.7.14."
)
strict_option = click.option("--strict", is_flag=True, help="Count advice as well as defects.")


@dataclass(frozen=True)
class RecipeOptions:
    """The options of a lint that knows where a file will run, and may mend the file."""

    facts_file: Path | None = declared(options.facts_file)
    path: str | None = option(
        None,
        "Where the file will run. Default: by the facts (a Windows client: wsl2; a server: dda).",
        type=click.Choice(("wsl2", "dda", "bare-metal", "linux")),
    )
    vllm: str | None = option("VERSION", "The version of vLLM, for example 0.33.0, if no image tag names it.")
    fix: bool = flag("Mend what can be mended automatically, and write the result to NAME.mended.EXT.")
    in_place: bool = flag("Mend the file itself. All other bytes stay as they are.")
    force: bool = declared(options.force, False)
    everything: bool = flag("Show the evidence of each finding.", name="--explain")
    strict: bool = declared(strict_option, False)
    output: options.Output = declared(options.output_options("FILE", "The file that --fix writes."), options.Output())

    @property
    def mends(self) -> bool:
        return self.fix or self.in_place


class Lints(WinhostGroup):
    """A group whose commands are kinds of files. A file name instead of a kind is refused with the list of kinds."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        word, kinds = args[0], self.list_commands(ctx)
        if word not in kinds and (word == "-" or Path(word).exists()) and not ctx.resilient_parsing:
            from winhost.model.errors import visible  # `winhost lint --help` must not load it

            ctx.fail(f"name the kind of file before '{visible(word)}': {', '.join(kinds)}")
        return super().resolve_command(ctx, args)


@click.group(cls=Lints)
def lint() -> None:
    """Find what is wrong in files for WSL, vLLM, containers and Ubuntu's installer, and mend it."""


@lint.command()
@file_argument
@facts_argument
@version_option
@options.facts_file
@strict_option
@options.output_options()
@implemented_in("lint.lint")
def wslconfig() -> None:
    """Check the .wslconfig of an account.

    FACTS of the host that will read the file supply its WSL version and the settings that a policy forbids.
    """


@lint.command()
@file_argument
@version_option
@strict_option
@options.output_options()
@implemented_in("lint.lint")
def wslconf() -> None:
    """Check the /etc/wsl.conf of a distro."""


@lint.command()
@file_argument
@facts_argument
@options.facts_file
@click.option("--installer", metavar="VERSION", help="The version of the installation media, for example 24.04.4.")
@strict_option
@options.output_options()
@implemented_in("lint.lint")
def autoinstall() -> None:
    """Check a file for the automatic installation of Ubuntu: autoinstall.yaml, or a cloud-config with such a section.

    FACTS of the machine, or its disk manifest, supply the partitions that the file must list.
    """


@lint.command(name="serve")
@click.argument("words", metavar="FILE...|COMMAND|-", nargs=-1, required=True)
@options_object(RecipeOptions, "options")
@implemented_in("lint.lint")
def serve() -> None:
    """Check a command or file that starts vLLM for wrong, missing, dangerous, renamed or ineffective settings.

    FILE is a script, a compose file, a Kubernetes manifest, values of vLLM's Helm chart, a systemd unit, a podman
    quadlet, a file of variables, or the file of vllm serve --config; each is checked by itself. - is standard input.
    COMMAND is a command itself, in quotes or behind --: `vllm serve …`, `docker run …`. For other engines (SGLang,
    TensorRT-LLM, NVIDIA NIM, LMDeploy, TGI, Text Embeddings Inference, llama.cpp, Ollama, FFmpeg) it checks what all
    engines have in common: GPUs, shared memory, ports, keys. Secrets are never shown.
    """


@lint.command(name="docker-daemon")
@file_argument
@options_object(RecipeOptions, "options", leave_out=("vllm",))
@implemented_in("lint.lint")
def docker_daemon() -> None:
    """Check the settings of the Docker daemon, /etc/docker/daemon.json."""


@lint.command(name="cdi")
@file_argument
@options_object(
    RecipeOptions, "options", leave_out=("vllm", "fix", "in_place", "force"), output=options.output_options()
)
@implemented_in("lint.lint")
def cdi() -> None:
    """Check a CDI specification, which gives containers their GPUs."""
