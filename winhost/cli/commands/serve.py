"""Arguments, options and help of `winhost serve`."""

from pathlib import Path

import click

from winhost.cli.groups import WinhostGroup, implemented_in
from winhost.cli.outputs import answers


@click.group(cls=WinhostGroup)
def serve() -> None:
    """Show how to serve models on a target: which settings, and why."""


# Said twice, here and in winhost.serving, so that --help need not load it.
@serve.command()
@click.argument("facts", metavar="FACTS", required=False, type=click.Path(path_type=Path))
@click.option("--target", "facts_file", type=click.Path(path_type=Path), help="The same as FACTS.")
@click.option(
    "--workload", "workload_file", type=click.Path(path_type=Path), required=True, help="The workload to be served."
)
@click.option(
    "--profile",
    "named",
    type=click.Choice(("wsl2", "wsl2-no-sleep")),
    help="Use this profile for every model. Default: wsl2, or wsl2-no-sleep where sleep mode is unsafe.",
)
@click.option(
    "--read-speed",
    type=click.IntRange(1, 1_000_000),
    default=2400,
    show_default=True,
    metavar="MB/S",
    help="Read speed of the disk with the weights, for the time that is lost without sleep mode.",
)
@click.option("--explain", "everything", is_flag=True, help="Show the reason, versions and evidence of each line.")
@answers()
@implemented_in("winhost.cli.serve")
def profile() -> None:
    """Print the vLLM settings for each model, ready to copy, with the reason for each line.

    FACTS is the facts file of the host, or a folder with only that file. Profiles exist for WSL 2 only so far. Changes
    nothing.
    """


# The hub is named twice, here and in winhost.serving, so that --help need not load it.
@serve.command()
@click.argument("model", metavar="MODEL")
@click.option("--revision", metavar="COMMIT", required=True, help="The commit, all 40 digits.")
@click.option("--folder", metavar="PATH", required=True, help="Where the files are to be on the Linux that serves.")
@click.option("--token", metavar="REF", help="A secret reference to a token of the hub, for example env:HF_TOKEN.")
@click.option(
    "--hub", metavar="URL", default="https://huggingface.co", show_default=True, help="A hub with the same API."
)
@implemented_in("winhost.cli.serve")
def files() -> None:
    """Print the files of a model at one revision, as an entry of a playbook.

    MODEL is ORG/NAME on the hub. The entry has every file with its size and hash; the Linux that serves downloads them
    itself and accepts nothing else.
    """
