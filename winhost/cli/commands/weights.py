"""Arguments, options and help of `winhost weights`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from winhost.cli.groups import WinhostGroup
from winhost.cli.outputs import answers

_model = click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
_python: Callable[..., Any] = click.option(
    "--python", metavar="PATH", default="python3", show_default=True, help="The Python of an engine, which has torch."
)


@click.group(cls=WinhostGroup)
def weights() -> None:
    """Pack a model's weights smaller, so that an engine loads them sooner."""


@weights.command()
@_model
@_python
@answers("FOLDER", "The folder to write.", required=True)
def pack(**options: Any) -> int:
    """Pack the safetensors files of MODEL, a folder, on the GPU of this machine.

    The folder gets all files of the model and the loader as a wheel. MODEL stays as it is. Run it again to go on where
    it ended.
    """
    from winhost.cli.weights import pack as run

    return run(**options)


@weights.command()
@_model
@_python
@answers("FOLDER", "The folder to write.", required=True)
def unpack(**options: Any) -> int:
    """Write the original files of MODEL, a packed folder, bit for bit."""
    from winhost.cli.weights import unpack as run

    return run(**options)


@weights.command()
@_model
@_python
@answers()
def verify(**options: Any) -> int:
    """Decode every tensor of MODEL, a packed folder, and compare it with the original's SHA-256."""
    from winhost.cli.weights import verify as run

    return run(**options)


@weights.command("list")
@_model
@answers()
def list_(**options: Any) -> int:
    """List the packed files of MODEL, a folder, and their sizes. Needs no GPU; reads and checks headers alone."""
    from winhost.cli.weights import listed as run

    return run(**options)
