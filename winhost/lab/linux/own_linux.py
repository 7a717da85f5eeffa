"""A simulated Linux of its own, made of the facts of one: what it runs is as in a distro, and nothing around it is."""

from collections.abc import Sequence

from winhost.lab.linux.linux_answers import LinuxAnswers, Sshd
from winhost.lab.linux.linux_machine import Linux
from winhost.lab.physics.lab_clock import LabClock
from winhost.lab.physics.lab_section import LabSection
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.wsl_session import Distro
from winhost.model.facts import Facts


class OwnLinux:
    """Lets in root with the keys that it is given, while it is up."""

    user = "root"

    def __init__(self, facts: Facts, section: LabSection, clock: LabClock) -> None:
        self._distro = Distro(facts.host, "", running=True, systemd=True, sshd=True, enabled=True)
        self.machine = Machine(facts, section, clock)
        self.linux = Linux(self.machine, self._distro, own=True)
        self.answers = LinuxAnswers(self.linux)

    @property
    def seed(self) -> bytes:
        return self._distro.seed

    @property
    def host_key(self) -> str:
        return self._distro.host_key

    @property
    def authorized(self) -> Sequence[str]:
        return self._distro.keys

    @authorized.setter
    def authorized(self, keys: Sequence[str]) -> None:
        self._distro.keys = list(keys)

    def listening(self) -> Sshd | None:
        """Nobody while it restarts."""
        machine, boot = self.machine, self.machine.boot
        if not machine.accepting():
            return None
        self.answers.look()
        up = lambda: machine.accepting() and machine.boot == boot  # noqa: E731
        return Sshd(self.answers, self.user, tuple(self.authorized), machine, up, self.answers.came_in())
