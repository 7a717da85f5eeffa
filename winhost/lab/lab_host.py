"""A simulated host as the endpoint serves it: its runspaces, which run only the agent, and its SSH servers."""

import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Self

from winhost.lab.contract.agent_answers import AgentAnswers, PipelineStopped
from winhost.lab.linux.linux_answers import HostDistros
from winhost.lab.linux.linuxes import DualBootLinux, HostGuests
from winhost.lab.physics.host_state import HostDown
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.ubuntu_installer import run_installer
from winhost.lab.wire.served_host import PipelineError, RemoteCommand
from winhost.lab.wire.ssh_endpoint import SshServer
from winhost.resources.windows.parts import WindowsScripts, recognize_parts

INVOKE = "Invoke-Winhost"


class LabRunspace:
    """Answers the agent's JSON calls without a PowerShell. Any script other than the agent is refused."""

    def __init__(self, answers: AgentAnswers) -> None:
        self._answers = answers
        self._sent_parts: set[str] = set()

    def invoke(self, commands: Sequence[RemoteCommand], stop: threading.Event) -> Iterable[object]:
        """Run parts of the agent's own text with a request, or a call of the function that they define."""
        (command,) = commands
        if command.is_script:
            parts = recognize_parts(command.text)
            if not parts:
                raise PipelineError("The lab knows only this winhost's agent.", "LabUnknownScript", "NotImplemented")
            self._load_parts(parts)
            self._sent_parts |= {*parts}
            return [self._answer(str(request), stop) for request in command.arguments]
        if command.text.casefold() != INVOKE.casefold() or not self._sent_parts:
            message = f"The term '{command.text}' is not recognized as the name of a cmdlet."
            raise PipelineError(message, "CommandNotFoundException", "ObjectNotFound")
        return [self._answer(str(command.parameters["Json"]), stop)]

    def close(self) -> None:
        """Do nothing: there is no process to end."""

    def _load_parts(self, parts: Sequence[str]) -> None:
        """Do nothing: the answers do not need the text."""

    def _answer(self, request: str, stop: threading.Event) -> str:
        if unsent := [part for part in WindowsScripts().needed(request) if part not in self._sent_parts]:
            message = f"These parts of the agent were not sent: {', '.join(unsent)}."
            raise PipelineError(message, "LabNotSent", "ObjectNotFound")
        try:
            return self._answers.invoke(request, stop)
        except HostDown:
            raise PipelineError("The host went down.", "HostDown", "ConnectionError") from None
        except PipelineStopped:
            raise PipelineError("The pipeline was stopped.", "PipelineStopped", "OperationStopped") from None


class HostLinuxes:
    """The SSH servers of one simulated host: in its distros, in its guests, and in the Linux beside Windows."""

    def __init__(self, machine: Machine) -> None:
        self.dual_boot = DualBootLinux(machine)
        self.distros = HostDistros(machine)
        self.guests = HostGuests(machine)

    def find_sshd(self) -> SshServer | None:
        """Return the SSH server of a running Linux, or None."""
        return self.dual_boot.find_sshd() or self.distros.find_sshd() or self.guests.find_sshd()


class LabHost:
    """One machine as its endpoint serves it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.answers = AgentAnswers(machine)
        self.linux = HostLinuxes(machine)
        machine.dual_boot.installer = partial(run_installer, machine)

    @property
    def boot(self) -> int:
        return self.machine.boot

    def accepts_connections(self) -> bool:
        return self.machine.accepts_connections()

    @property
    def network_epoch(self) -> int | None:
        return self.machine.network.epoch if self.machine.network.is_reachable else None

    def open_runspace(self, user: str) -> LabRunspace:
        return LabRunspace(self.answers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""
