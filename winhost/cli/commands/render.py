"""Arguments, options and help of `winhost render`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from winhost.cli.cluster_options import cluster_options
from winhost.cli.groups import WinhostGroup
from winhost.cli.options import Size, force_option
from winhost.cli.outputs import answers
from winhost.cli.stack_options import stack_options

# What a plan alone can set up.
_OF_A_PLAN = ("--workload", "--engine-program", "--engine-lock", "--gateway-wheels", "--python", "--index")

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=WinhostGroup)
def render() -> None:
    """Print what serves a workload as files for a deployment of your own."""


def _machine_options(command: F) -> F:
    """For which machine: by its facts, or by what is said of it."""
    for option in (
        click.option("--path", type=click.Choice(("wsl2", "dda", "dual-boot", "bare-metal")),
                     help="Facts of a Windows host: how it gets its Linux. Default: wsl2, or dda where only that "
                     "carries the workload."),
        click.option("--memory", type=Size(), help="Instead of facts: the memory of the machine, such as 256GiB."),
        click.option("--gpus", metavar="NUMBERxSIZE",
                     help="Instead of facts: its GPUs, all alike, and the memory of each, such as 2x48GiB."),
        click.option("--facts", "facts_file", type=click.Path(path_type=Path),
                     help="The facts of the machine that is to serve, as detect -o writes them."),
    ):  # fmt: skip
        command = option(command)
    return command


@render.command()
@click.argument("workload", metavar="WORKLOAD", type=click.Path(path_type=Path))
@_machine_options
@stack_options(leave_out=(*_OF_A_PLAN, "--allow"))
@force_option
@answers("FILE", "The compose file to write; without it, the text goes to the terminal.")
def compose(**options: Any) -> int:
    """Print all that serves WORKLOAD as one compose project: engines, models and the gateway.

    Name the machine by --facts, or by --gpus and --memory. The engine's image is pinned by digest, models by their
    commit; an engine has no port, and development mode is off. Changes nothing.
    """
    from winhost.cli.render_compose import compose as run

    return run(**options)


@render.command()
@click.argument("workload", metavar="WORKLOAD", type=click.Path(path_type=Path))
@_machine_options
@stack_options(leave_out=(*_OF_A_PLAN, "--engine-archive", "--listen", "--certificate", "--certificate-key"))
@cluster_options
@force_option
@answers("FOLDER", "The folder to write, for kubectl apply -k; without it, one YAML stream goes to the terminal.")
def kubernetes(**options: Any) -> int:
    """Print all that serves WORKLOAD as manifests for a cluster: engines, models, the gateway, NVIDIA's device plugin.

    The workload has deploy: kubernetes. Name the machine that is to be the node by --facts, or by --gpus and --memory.
    Images are pinned by digest, models by commit and hash; keys stand there as hashes, tokens as references. Only the
    gateway reaches an engine. Changes nothing.
    """
    from winhost.cli.render_kubernetes import kubernetes as run

    return run(**options)
