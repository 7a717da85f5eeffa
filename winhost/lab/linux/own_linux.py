"""A simulated Linux of its own, made of the facts of one: what it runs is as in a distro, and nothing around it is."""

import socket
from collections.abc import Sequence

from winhost.core.dataclass import dataclass
from winhost.lab.linux.linux_answers import LinuxAnswers
from winhost.lab.linux.linux_machine import Linux
from winhost.lab.physics.cmdlet_host import HostDown
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

    def listening(self) -> "_Sshd | None":
        """Nobody while it restarts."""
        if not self.machine.accepting():
            return None
        self.answers.look()
        return _Sshd(self, self.machine.boot, self.answers.came_in())


@dataclass(frozen=True)
class _Sshd:
    """As it runs in one boot."""

    host: OwnLinux
    boot: int
    connection: int

    @property
    def user(self) -> str:
        return self.host.user

    @property
    def seed(self) -> bytes:
        return self.host.seed

    @property
    def authorized(self) -> Sequence[str]:
        return self.host.authorized

    def connect(self, address: str, port: int) -> socket.socket | None:
        """A connection from within; None where nobody listens."""
        self._check_up()
        return self.host.answers.connect(address, port)

    def invoke(self, request: str, *, program: str = "agent") -> str:
        """The answer to one request. Raises HostDown where there is none, because the machine is gone."""
        self._check_up()
        answers = self.host.answers
        with self.host.machine.for_session(self._is_up):
            answer = answers.told(program, request, self.connection)
        self._check_up()
        return answer

    def _is_up(self) -> bool:
        return self.host.machine.accepting() and self.host.machine.boot == self.boot

    def _check_up(self) -> None:
        if not self._is_up():
            raise HostDown
