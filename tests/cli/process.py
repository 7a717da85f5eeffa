"""Run winhost in a process of its own."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.processes import started

# Its progress never has a reason to speak: what else stands on stderr does not hang on how fast a machine is.
UNHURRIED = (
    sys.executable,
    "-c",
    "from winhost.cli import watch; watch.SILENCE_S = 3600; from winhost.__main__ import main; main()",
)


def journal(folder: Path) -> Path | None:
    """Return the journal of the only run in this state folder, as soon as the run has started."""
    return next((folder / "state" / "runs").glob("*.jsonl"), None)


def kill_winhost(words: Sequence[str], folder: Path, at: Callable[[str], bool]) -> str:
    """Run winhost in this folder and kill it once its journal satisfies the condition, or let it end. Return the name
    of its run.
    """
    command = [sys.executable, "-m", "winhost", *words]
    with started(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as controller:
        while controller.poll() is None:
            path = journal(folder)
            if path is not None and at(path.read_text("utf-8")):
                controller.send_signal(signal.SIGKILL)
                break
            time.sleep(0.001)
    path = journal(folder)
    assert path is not None, f"winhost {' '.join(words)} has begun no run"
    return path.stem
