"""The wire to the Windows on which winhost runs, or in whose WSL it runs, without network and logon.

Each call starts a powershell.exe, as with the remote shell, with the rights of the user who started winhost.
"""

import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

from winhost.connect.remote_powershell import OPTIONS, encoded_command, format_input, parse_output
from winhost.connect.sent_parts import Scripts, call_with_parts
from winhost.connect.wire_errors import SessionDropped, TimedOut, Unreachable
from winhost.model.fleet import Host

_ENDPOINT = "this computer"
_WSL_PATH = "/mnt/c/Windows/System32/WindowsPowerShell/v1.0/powershell.exe"


class LocalWire:
    """A wire without a network. scripts: as for PsrpWire. Raises Unreachable."""

    def __init__(self, target: Host, scripts: Scripts) -> None:
        self.host = target.name
        self._scripts = scripts
        found = local_powershell()
        if found is None:
            meaning = "address: localhost means the Windows that winhost runs on, or in whose WSL it runs."
            hint = f"Run winhost there, or name the host's own address at hosts.{target.name}.address in fleet.yaml"
            raise Unreachable(target.name, "there is no powershell.exe", endpoint=_ENDPOINT, meaning=meaning, hint=hint)
        self._program = found

    def invoke(self, request: str, within: float) -> str:
        """Call the agent. Raises SessionDropped, TimedOut, RemoteError."""
        return call_with_parts(
            self._scripts, request, lambda parts, request: self._run(self._scripts.text(parts), request, within)
        )

    def _run(self, script: str, request: str, within: float) -> str:
        # Ctrl-C must not reach the process: winhost stops only after the step.
        detached: dict[str, Any] = {"start_new_session": True}
        if os.name == "nt":
            detached = {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
        try:
            process = subprocess.Popen(  # noqa: S603 - Windows' own, no shell
                [self._program, *OPTIONS, encoded_command()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                **detached,
            )
        except OSError as error:
            raise SessionDropped(
                self.host, f"powershell.exe cannot be started ({error.strerror})", endpoint=_ENDPOINT
            ) from None
        try:
            stdout, stderr = process.communicate(format_input(script, request), timeout=within)
        except subprocess.TimeoutExpired:
            # Ending the process would interrupt a change half-way. The next read shows the result.
            threading.Thread(target=process.communicate, daemon=True).start()
            raise TimedOut(
                self.host, f"powershell.exe has not ended within {within:.0f} s", endpoint=_ENDPOINT
            ) from None
        except BaseException:
            threading.Thread(target=process.communicate, daemon=True).start()
            raise
        return parse_output(self.host, _ENDPOINT, stdout, stderr, process.returncode)

    def close(self) -> None:
        """Do nothing: no process runs between two calls."""


def local_powershell() -> str | None:
    """Return the path of Windows PowerShell 5.1; modules of later versions miss commands that the agent needs. None if
    winhost runs neither on Windows nor in its WSL.
    """
    if os.name == "nt":
        root = os.environ.get("SYSTEMROOT", r"C:\Windows")
        return str(Path(root, "System32", "WindowsPowerShell", "v1.0", "powershell.exe"))
    return shutil.which("powershell.exe") or (_WSL_PATH if Path(_WSL_PATH).is_file() else None)
