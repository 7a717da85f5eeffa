"""The wire to the Windows that winhost itself runs on, or in whose WSL it runs: no network, no logon.

Each call is a powershell.exe of its own, as with the remote shell, and with the rights of whoever started winhost.
"""

import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

from winhost.connect.remote_powershell import OPTIONS, answer_of, encoded_command, input_of
from winhost.connect.sent_parts import Scripts, ask
from winhost.connect.wire_errors import SessionDropped, TimedOut, Unreachable
from winhost.model.fleet import Host

_AT = "this computer"
_IN_WSL = "/mnt/c/Windows/System32/WindowsPowerShell/v1.0/powershell.exe"


class LocalWire:
    """`scripts`: as PsrpWire has them."""

    def __init__(self, target: Host, scripts: Scripts) -> None:
        """Raises Unreachable."""
        self.host = target.name
        self._scripts = scripts
        found = local_powershell()
        if found is None:
            meaning = "address: localhost means the Windows that winhost runs on, or in whose WSL it runs."
            hint = f"Run winhost there, or name the host's own address at hosts.{target.name}.address in fleet.yaml"
            raise Unreachable(target.name, "there is no powershell.exe", at=_AT, meaning=meaning, hint=hint)
        self._program = found

    def invoke(self, request: str, within: float) -> str:
        """One call of the agent. Raises SessionDropped, TimedOut, RemoteError."""
        return ask(self._scripts, request, lambda parts, request: self._run(self._scripts.text(parts), request, within))

    def _run(self, script: str, request: str, within: float) -> str:
        # Out of reach of Ctrl-C: winhost stops after a step, and the step goes on.
        apart: dict[str, Any] = {"start_new_session": True}
        if os.name == "nt":
            apart = {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
        try:
            process = subprocess.Popen(  # noqa: S603 - Windows' own, no shell
                [self._program, *OPTIONS, encoded_command()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                **apart,
            )
        except OSError as error:
            raise SessionDropped(self.host, f"powershell.exe cannot be started ({error.strerror})", at=_AT) from None
        try:
            stdout, stderr = process.communicate(input_of(script, request), timeout=within)
        except subprocess.TimeoutExpired:
            # Ending it would end a change half-way. The next read shows what became of it.
            threading.Thread(target=process.communicate, daemon=True).start()
            raise TimedOut(self.host, f"powershell.exe has not ended within {within:.0f} s", at=_AT) from None
        except BaseException:
            threading.Thread(target=process.communicate, daemon=True).start()
            raise
        return answer_of(self.host, _AT, stdout, stderr, process.returncode)

    def close(self) -> None:
        """Nothing is open between two calls."""


def local_powershell() -> str | None:
    """Windows PowerShell, not one of a later version, whose modules lack what the agent needs. None where winhost runs
    neither on a Windows nor in its WSL.
    """
    if os.name == "nt":
        root = os.environ.get("SYSTEMROOT", r"C:\Windows")
        return str(Path(root, "System32", "WindowsPowerShell", "v1.0", "powershell.exe"))
    return shutil.which("powershell.exe") or (_IN_WSL if Path(_IN_WSL).is_file() else None)
