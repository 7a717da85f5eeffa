"""winhost demo: whole jobs, told by the very commands that a user would type, on simulated hosts."""

import tempfile
from pathlib import Path

from winhost.cli.demo_dda import DdaDemo
from winhost.cli.demo_story import StoryDemo
from winhost.cli.demo_wsl2 import Wsl2Demo

_IN_FULL = {"wsl2": Wsl2Demo, "dda": DdaDemo}


def demo(path: str | None, in_full: bool, keep: Path | None, engine: str) -> None:
    """Show complete jobs on simulated hosts, in under a minute."""
    played = [_IN_FULL[path]] if path else [*_IN_FULL.values()] if in_full else [StoryDemo]
    for each in played:
        with tempfile.TemporaryDirectory(prefix="winhost-demo-") as temporary:
            folder = (keep or Path(temporary)).absolute()  # one chapter changes into it
            each(folder / each.__name__ if keep and len(played) > 1 else folder, engine).play()
