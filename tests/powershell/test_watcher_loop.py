"""The loop of the watcher for a desktop, in a real PowerShell, without the C# that needs a Windows."""

import json
import subprocess
import time
from pathlib import Path

from tests.processes import PATIENCE_S
from winhost.lab.powershell.powershell_engine import find_engine
from winhost.resources.windows.windows_scripts import watcher_script

# What its C# answers, in the script's own words: PowerShell alone, without a compiler.
STAND_IN = r"""
class WinhostWatcher {
    static [int] NotificationState() { return 3 }
    static [bool] Wants([int]$State, [bool]$FullScreen, [bool]$Unlocked) { return $FullScreen -and $State -eq 3 }
    static [bool] Runs([string[]]$Programs) { return $Programs[0] -eq 'none.exe' }
    static [string] Next([bool]$Wanted, [long]$Second) { if ($Wanted) { return 'yield' } return '' }
    static [void] Check([string]$Url) { }
    static [string] Tell([string]$Url, [string]$Key, [string]$State) { return "$Url $Key $State" }
}
"""


def test_its_loop_runs_in_powershell(tmp_path: Path) -> None:
    folder = tmp_path / "watcher"
    folder.mkdir()

    def beside(name: str) -> Path:
        """Return the path at which the script finds a file on a system without backslashes in paths."""
        return tmp_path / f"watcher\\{name}"

    script = STAND_IN + watcher_script().replace("    Add-Type -TypeDefinition $source -ErrorAction Stop\n", "")
    (folder / "watch.ps1").write_text(script)
    settings = {"url": "http://127.0.0.1:8443", "programs": ["a.exe"], "full_screen": True, "unlocked": False}
    beside("settings.json").write_text(json.dumps({**settings, "gpu_memory": None}))
    beside("key").write_text("its key\r\n")
    beside("last.txt").write_text("what it said before, and more of it " * 9)
    command = [find_engine(), "-NoProfile", "-NonInteractive", "-File", str(folder / "watch.ps1")]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        until = time.monotonic() + PATIENCE_S
        while not (said := beside("last.txt").read_text()).endswith("Z yield http://127.0.0.1:8443 its key yield\n"):
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < until, said
            time.sleep(0.2)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
