"""A simulated host behind the endpoint: runspaces that know the parts of the agent's text and nothing else."""

import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Self

from winhost.lab.contract.agent_answers import AgentAnswers, PipelineStopped
from winhost.lab.linux.linux_answers import HostDistros
from winhost.lab.linux.linuxes import DualBootLinux, HostGuests
from winhost.lab.physics.host_state import HostDown
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.played_installer import play_installer
from winhost.lab.wire.served_host import PipelineError, RemoteCommand
from winhost.lab.wire.ssh_endpoint import SshServer
from winhost.resources.windows.parts import WindowsScripts, recognized

INVOKE = "Invoke-Winhost"


class LabRunspace:
    """Answers at the level of the agent's JSON contract. It runs no PowerShell: any script but the agent is refused."""

    def __init__(self, answers: AgentAnswers) -> None:
        self._answers = answers
        self._there: set[str] = set()  # the parts that were sent

    def invoke(self, commands: Sequence[RemoteCommand], stop: threading.Event) -> Iterable[object]:
        """Take parts of the agent's own text with a request, and then calls of what they define."""
        (command,) = commands
        if command.is_script:
            parts = recognized(command.text)
            if not parts:
                raise PipelineError("The lab knows only this winhost's agent.", "LabUnknownScript", "NotImplemented")
            self._prepare(parts)
            self._there |= {*parts}
            return [self._answer(str(request), stop) for request in command.arguments]
        if command.text.casefold() != INVOKE.casefold() or not self._there:
            message = f"The term '{command.text}' is not recognized as the name of a cmdlet."
            raise PipelineError(message, "CommandNotFoundException", "ObjectNotFound")
        return [self._answer(str(command.parameters["Json"]), stop)]

    def close(self) -> None:
        """There is nothing to close: a runspace has nothing outside this process."""

    def _prepare(self, parts: Sequence[str]) -> None:
        """There is nothing to prepare: the answers are known without the text."""

    def _answer(self, request: str, stop: threading.Event) -> str:
        if unsent := [part for part in WindowsScripts().needed(request) if part not in self._there]:
            message = f"These parts of the agent were not sent: {', '.join(unsent)}."
            raise PipelineError(message, "LabNotSent", "ObjectNotFound")
        try:
            return self._answers.invoke(request, stop)
        except HostDown:
            raise PipelineError("The host went down.", "HostDown", "ConnectionError") from None
        except PipelineStopped:
            raise PipelineError("The pipeline was stopped.", "PipelineStopped", "OperationStopped") from None


class HostLinuxes:
    """Answers SSH on one simulated host: its distros, its guests, or the Linux that runs while Windows does not."""

    def __init__(self, machine: Machine) -> None:
        self.beside = DualBootLinux(machine)
        self.distros = HostDistros(machine)
        self.guests = HostGuests(machine)

    def find_sshd(self) -> SshServer | None:
        """The SSH server of the Linux that runs; None while there is none."""
        return self.beside.find_sshd() or self.distros.find_sshd() or self.guests.find_sshd()


class LabHost:
    """Serves one machine at the endpoint."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.answers = AgentAnswers(machine)
        self.linux = HostLinuxes(machine)
        machine.dual_boot.installer = partial(play_installer, machine)

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
        """There is nothing to close."""
