"""The wire to a Windows host that opens no PowerShell session: its remote shell, through pypsrp.

Each call is a powershell.exe of its own, and sends all parts of the agent that it needs, so it is slower than a
runspace.
"""

from collections.abc import Sequence
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING

from winhost.connect.guard import MOST_AT_ONCE, Guard
from winhost.connect.libraries import at, translated, wsman
from winhost.connect.remote_powershell import OPTIONS, answer_of, encoded_command, input_of
from winhost.connect.sent_parts import Scripts, ask
from winhost.connect.wire_errors import SessionDropped, Unreachable
from winhost.model.fleet import Host

if TYPE_CHECKING:
    from pypsrp.shell import Process

POWERSHELL = "powershell.exe"
_PIECE = 100_000  # bytes in one message: as base64, with its envelope, below the 150 KiB of the oldest WinRM
_UTF8 = 65001


class WinrsWire:
    """One remote shell. `scripts`: as PsrpWire has them. Raises what that raises."""

    def __init__(self, target: Host, scripts: Scripts) -> None:
        from pypsrp.shell import WinRS

        self.host = target.name
        self._target = target
        self._scripts = scripts
        self._in_use = False
        self._guard = Guard(target.name, at(target), MOST_AT_ONCE)
        self._wsman = wsman(target, self._guard)
        self._shell = WinRS(self._wsman, codepage=_UTF8)
        self._guard.begin(target.transport.call_timeout, opening=True)
        try:
            translated(target, Unreachable, self._open)
        except BaseException:
            self._wsman.close()
            raise

    def invoke(self, request: str, within: float) -> str:
        """One call of the agent. Raises SessionDropped, TimedOut, RemoteError."""
        self._guard.begin(within)
        return translated(self._target, SessionDropped, lambda: ask(self._scripts, request, self._call))

    def close(self) -> None:
        """Close the shell, unless a call may still run in it: that would be ended half-way; see PsrpWire."""
        if not self._in_use:
            self._guard.leave()
            with suppress(Exception):
                self._shell.close()
        self._wsman.close()

    def _open(self) -> None:
        from pypsrp.wsman import OptionSet

        options = OptionSet()
        options.add_option("WINRS_NOPROFILE", "TRUE")  # pypsrp's own says that the host must comply, and not all do
        self._shell.open(options)

    def _call(self, parts: Sequence[str], request: str) -> str:
        self._in_use = True
        stdout, stderr, code = self._run(self._scripts.text(parts), request)
        self._in_use = False
        return answer_of(self.host, self._guard.at, stdout, stderr, code)

    def _run(self, script: str, request: str) -> tuple[bytes, bytes, int]:
        from pypsrp.shell import CommandState, SignalCode

        process = self._begun()
        data = input_of(script, request)
        for start in range(0, len(data), _PIECE):
            process.send(data[start : start + _PIECE], end=start + _PIECE >= len(data))
        while process.state != CommandState.DONE:
            left = self._guard.left()
            process.poll_invoke(timeout=ceil(left) if left < self._target.transport.operation_timeout else None)
        process.signal(SignalCode.TERMINATE)
        return process.stdout, process.stderr, -1 if process.rc is None else process.rc

    def _begun(self) -> "Process":
        """Begin powershell.exe as pypsrp would, but with its input as a pipe: in console mode a Ctrl-C in the bytes
        would be one.
        """
        from xml.etree.ElementTree import Element, SubElement

        from pypsrp.shell import Process
        from pypsrp.wsman import NAMESPACES, OptionSet

        options = OptionSet()
        options.add_option("WINRS_CONSOLEMODE_STDIN", "FALSE")
        options.add_option("WINRS_SKIP_CMD_SHELL", "TRUE")
        line = Element(f"{{{NAMESPACES['rsp']}}}CommandLine")
        for name, text in (("Command", POWERSHELL), ("Arguments", " ".join((*OPTIONS, encoded_command())))):
            SubElement(line, f"{{{NAMESPACES['rsp']}}}{name}").text = text
        shell = self._shell
        answer = self._wsman.command(shell.resource_uri, line, options, shell._selector_set)
        return Process(shell, POWERSHELL, id=answer.findtext("rsp:CommandResponse/rsp:CommandId", None, NAMESPACES))
