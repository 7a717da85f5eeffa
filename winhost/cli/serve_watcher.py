"""winhost serve watcher: the program for a Windows desktop that asks the gateway for the GPUs, as files."""

from pathlib import Path

import click

from winhost.cli.envelope import answer
from winhost.cli.output import say
from winhost.cli.outputs import Output
from winhost.cli.render_compose import Rendered
from winhost.cli.stack_watchers import settings_text
from winhost.model.errors import UsageError, visible
from winhost.model.workloadfile import load_workload
from winhost.resources.windows.windows_scripts import watcher_script

_NOTE = "Its key and its task: docs/wsl2.md has the commands. A plan of path wsl2 installs it for yield_to.accounts."


def watcher(workload_file: Path, url: str | None, output: Output) -> int:
    """Write the script and its settings into a folder."""
    wanted = load_workload(workload_file).availability.yield_to
    if wanted is None:
        raise UsageError(
            "NothingToWatch",
            what=f"{visible(str(workload_file))} has no availability.yield_to",
            meaning="It says when models leave their GPUs to the desktop, which is what the watcher looks for.",
            hint="Add it, for example: availability: {yield_to: {full_screen: true}}",
        )
    url = url or wanted.url or "http://127.0.0.1:8443"
    if not url.startswith(("https://", "http://127.0.0.1:", "http://localhost:", "http://[::1]:")):
        raise click.BadParameter("http is for this machine alone, as http://127.0.0.1:8443", param_hint="'--url'")
    folder = output.path
    assert folder is not None
    texts = {"watch.ps1": watcher_script(), "settings.json": settings_text(wanted, url) + "\n"}
    if there := [name for name in texts if (folder / name).exists()]:
        raise click.BadParameter(f"{there[0]} is there already; name another folder", param_hint="'-o'")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text.replace("\n", "\r\n"), encoding="ascii", newline="")
    if output.shape in ("json", "yaml"):
        found = [Rendered("watcher", str(folder / name), (_NOTE,), text) for name, text in texts.items()]
        answer("rendered", found, output.shape)
        return 0
    say(f"{folder}: watch.ps1 and settings.json. {_NOTE}", hang=2)
    return 0
