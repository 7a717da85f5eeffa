"""A simulated Linux of its own, made of the facts of one: what it runs is as in a distro, and nothing around it is."""

from collections.abc import Sequence

from winhost.lab.linux.linux_answers import LinuxAnswers
from winhost.lab.linux.linux_machine import Linux
from winhost.lab.physics.lab_clock import LabClock
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.wsl_session import Distro
from winhost.model.facts import Facts


class OwnLinux:
    """Lets in root with the keys that it is given."""

    user = "root"

    def __init__(self, facts: Facts, clock: LabClock) -> None:
        self.authorized: Sequence[str] = ()
        self._distro = Distro(facts.host, "", running=True, systemd=True, sshd=True, enabled=True)
        self.linux = Linux(Machine(facts, clock=clock), self._distro, own=True)
        self._answers = LinuxAnswers(self.linux)

    @property
    def seed(self) -> bytes:
        return self._distro.seed

    @property
    def host_key(self) -> str:
        return self._distro.host_key

    def listening(self) -> "OwnLinux":
        """It is always there."""
        return self

    def invoke(self, request: str, *, probes: bool = False) -> str:
        """The answer to one request."""
        return (self._answers.probe if probes else self._answers.invoke)(request)
