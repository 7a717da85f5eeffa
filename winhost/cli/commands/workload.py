"""Arguments, options and help of `winhost workload`."""

from typing import Any

import click

from winhost.cli.groups import WinhostGroup
from winhost.cli.options import WholeNumber, hub_option
from winhost.cli.outputs import answers


@click.group(cls=WinhostGroup)
def workload() -> None:
    """Draft what you want to serve from a model's own files."""


@workload.command()
@click.argument("model", metavar="MODEL")
@click.option(
    "--revision",
    metavar="REVISION",
    default="main",
    show_default=True,
    help="A branch, tag or commit; the file gets the commit that it leads to now.",
)
@click.option("--token", metavar="REF", help="A secret reference to a token of the hub, for example env:HF_TOKEN.")
@hub_option
@click.option("--context", type=WholeNumber(1, 100_000_000), metavar="TOKENS", help="Of the longest sequence.")
@click.option(
    "--sequences", type=WholeNumber(1, 65_536), metavar="N", help="At once, each at full context. With --context only."
)
@click.option("--gpus", type=WholeNumber(1, 64), metavar="N", help="GPUs that share each layer. With --context only.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@answers("FILE", "The workload file to write; without it, the text goes to the terminal.")
def init(**options: Any) -> int:
    """Draft a workload file for MODEL, which is ORG/NAME on Hugging Face, or a folder such as ./Qwen3-8B.

    Reads its config.json, the list of its files and the headers of its safetensors files: some kilobytes, no weights.
    Fixes the commit, and says what it assumed and what to look at: a licence to accept, pickles, code that wants to
    run. A folder has no commit: a plan pins each of its files by its hash. Edit the file, then see what could serve it:
    winhost assess HOST --workload FILE
    """
    from winhost.cli.workload import init as run

    return run(**options)
