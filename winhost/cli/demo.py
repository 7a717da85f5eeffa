"""winhost demo: a whole job, told by the very commands that a user would type, on simulated hosts."""

import tempfile
from pathlib import Path

from winhost.cli.demo_dda import DdaDemo
from winhost.cli.demo_wsl2 import Wsl2Demo


def demo(path: str, keep: Path | None, engine: str) -> None:
    """Show a complete job on simulated hosts, in under a minute."""
    played = {"dda": DdaDemo, "wsl2": Wsl2Demo}[path]
    with tempfile.TemporaryDirectory(prefix="winhost-demo-") as folder:
        played((keep or Path(folder)).absolute(), engine).play()  # one chapter changes into it
