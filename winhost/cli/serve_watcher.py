"""winhost serve watcher: the program for a Windows desktop that asks the gateway for the GPUs, as files."""

import json
from importlib.resources import files
from pathlib import Path

import click

from winhost import serving
from winhost.cli.output import say
from winhost.model.errors import UsageError, visible
from winhost.model.workloadfile import load_workload

_SCRIPT = "yield_watcher.ps1"


def watcher(workload_file: Path, url: str, folder: Path) -> int:
    """Write the script and its settings into a folder."""
    wanted = load_workload(workload_file).availability.yield_to
    if wanted is None:
        raise UsageError(
            "NothingToWatch",
            what=f"{visible(str(workload_file))} has no availability.yield_to",
            meaning="It says when models leave their GPUs to the desktop, which is what the watcher looks for.",
            hint="Add it, for example: availability: {yield_to: {full_screen: true}}",
        )
    if not url.startswith(("https://", "http://127.0.0.1:", "http://localhost:", "http://[::1]:")):
        raise click.BadParameter("http is for this machine alone, as http://127.0.0.1:8443", param_hint="'--url'")
    settings = {
        "url": url,
        "programs": [*wanted.programs],
        "full_screen": wanted.full_screen,
        "unlocked": wanted.unlocked,
        "gpu_memory": wanted.gpu_memory,
    }
    texts = {
        "watch.ps1": (files(serving) / _SCRIPT).read_text("ascii"),
        "settings.json": json.dumps(settings, indent=2) + "\n",
    }
    if there := [name for name in texts if (folder / name).exists()]:
        raise click.BadParameter(f"{there[0]} is there already; name another folder", param_hint="'-o'")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text.replace("\n", "\r\n"), encoding="ascii", newline="")
    say(f"{folder}: watch.ps1 and settings.json. Its key and its task: docs/wsl2.md has the commands.", hang=2)
    return 0
