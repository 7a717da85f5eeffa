"""Arguments, options and help of `winhost serve`."""

from pathlib import Path

import click

from winhost.cli.groups import WinhostGroup, implemented_in
from winhost.cli.outputs import answers


@click.group(cls=WinhostGroup)
def serve() -> None:
    """Serve models on a target: with which settings, and why."""


# Said twice, here and in winhost.serving, so that --help need not load it.
@serve.command()
@click.argument("facts", metavar="FACTS", required=False, type=click.Path(path_type=Path))
@click.option("--target", "facts_file", type=click.Path(path_type=Path), help="The same as FACTS.")
@click.option("--workload", "workload_file", type=click.Path(path_type=Path), required=True, help="What is served.")
@click.option(
    "--profile",
    "named",
    type=click.Choice(("wsl2", "wsl2-no-sleep")),
    help="This one for every model. Default: wsl2, and wsl2-no-sleep where sleeping is not safe.",
)
@click.option(
    "--read-speed",
    type=click.IntRange(1, 1_000_000),
    default=2400,
    show_default=True,
    metavar="MB/S",
    help="Of the disk that the weights are on; for the time that is lost without sleep.",
)
@click.option("--explain", "everything", is_flag=True, help="Show each line's reason, versions and evidence.")
@answers()
@implemented_in("winhost.cli.serve")
def profile() -> None:
    """Print the settings of vLLM for each model, ready to copy, with the reason of each line.

    FACTS are those of the host, as a file or as a folder with no others. For WSL 2; those for other targets do not
    exist yet. Changes nothing.
    """
