"""A simulated host that serves from WSL, and its Linux, without wires between: a small path for both of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.engine.world import WindowsAlone, World
from winhost.connect.agent import Agent
from winhost.connect.host_keys import HostKeyRefused
from winhost.connect.ssh_logon import key_refused_error, no_sshd_error
from winhost.connect.windows_with_linux import WindowsWithLinux
from winhost.connect.wire_errors import SessionDropped, TimedOut
from winhost.core.answers import Id
from winhost.core.steps import DesiredResource
from winhost.engine.planning import make_plan
from winhost.engine.store import Store
from winhost.lab.hostfile import expand, find
from winhost.lab.linux.linux_answers import HostDistros, LinuxAnswers, Sshd
from winhost.lab.physics.host_state import HostDown
from winhost.lab.physics.lab_section import LabClock
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.ssh_keys import public_line
from winhost.lab.physics.wsl_exe import Distro
from winhost.model.fleet import Host, LinuxHost, Ssh, Transport
from winhost.model.plan import Deferred, Plan, PlanRequest, Unchecked
from winhost.model.reason import Caution, PathVerdict, Verdict
from winhost.model.secrets import SecretRef
from winhost.paths.playbook import PathRequest, parse_request
from winhost.resources.host import HostFacts
from winhost.resources.linux.read_only import LinuxSystem
from winhost.resources.registry import LINUX
from winhost.resources.shape import check_records

ACCOUNT, DISTRO = "winhost", "Ubuntu-24.04"
KEY = {"account": ACCOUNT, "distro": DISTRO}
SEED = b"a controller that there is none of"[:32]
OURS = f"{public_line(SEED)} controller"
UNIT = "winhost-cdi.path"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
WHY = "For the test."
CONSENTS = ("network", "vm-stop")

# In no order: that comes from needs.
PLAYBOOK: dict[str, Any] = {
    "schema": "winhost.playbook/2",
    "path": "two-machines",
    "settings": {},
    "resources": [
        {
            "resource": "SystemdUnit",
            "title": "The unit",
            "key": {"unit": UNIT},
            "desired": {"enabled": "enabled", "active": True},
            "why": WHY,
        },
        {
            "resource": "LinuxFile",
            "title": "The unit's file",
            "key": {"path": UNIT_FILE},
            "desired": {"text": "[Unit]\nDescription=on ${kernel}\n[Install]\n", "mode": "0644", "owner": "root:root"},
            "why": WHY,
        },
        {
            "resource": "DebianPackage",
            "title": "A package",
            "key": {"package": "docker.io"},
            "desired": {"version": "26.1.3-0ubuntu1", "held": True},
            "why": WHY,
        },
        {
            "resource": "WslAccess",
            "title": "The way in",
            "key": KEY,
            "desired": {"port": 2222, "listen": "172.28.116.5", "authorized": [OURS], "active": True},
            "why": WHY,
        },
    ],
}


class Decisions:
    def __init__(self, facts: HostFacts) -> None:
        self._facts = facts

    @property
    def kernel(self) -> str:
        return self._facts.the(LinuxSystem).kernel


class TwoMachinesPlan:
    """As the engine asks of a path."""

    def __init__(self, facts: HostFacts, request: PathRequest) -> None:
        self._facts = facts

    @property
    def verdict(self) -> PathVerdict:
        return PathVerdict("two-machines", Verdict.SUPPORTED, (), (), (), ())

    @property
    def decisions(self) -> object:
        return Decisions(self._facts)

    @property
    def cautions(self) -> tuple[Caution, ...]:
        return ()

    def check(self, desired: Iterable[DesiredResource]) -> None:
        pass

    def risks(self) -> Mapping[Id, tuple[str, ...]]:
        return {}

    def unchecked(self, deferred: Iterable[Deferred]) -> tuple[Unchecked, ...]:
        return ()


class LinuxWire:
    """Calls the lab's Linux without SSH."""

    def __init__(self, here: "TwoMachines", host: str, listening: Sshd) -> None:
        self.host = host
        self._here = here
        self._listening = listening

    def invoke(self, request: str, within: float) -> str:
        try:
            answer = self._listening.invoke(request)
        except HostDown:
            raise SessionDropped(self.host, "the distro is gone") from None
        if self._here.lost and '"set"' in request:
            raise self._here.lost.pop()(self.host, "lost")
        return answer

    def close(self) -> None:
        pass


@dataclass
class TwoMachines(World):
    """lost: with what the next answers to a `set` are lost; targets: what was opened."""

    consents: Sequence[str] = CONSENTS
    lost: list[type[SessionDropped | TimedOut]] = field(default_factory=list)
    ssh: Ssh | None = field(default_factory=lambda: Ssh(key=SecretRef("env", "NOT_READ")))
    shows: bytes | None = None
    targets: list[LinuxHost] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.linux = HostDistros(self.machine)

    @property
    def connector(self) -> WindowsWithLinux:
        target = Host(name=self.host, address="192.0.2.5", transport=Transport(port=5986), ssh=self.ssh)
        return WindowsWithLinux(WindowsAlone(self), target, tuple(LINUX), "", self._enter)

    def open(self) -> Agent:
        return self.connector.open()

    def _enter(self, target: LinuxHost, program: str) -> Agent:
        self.targets.append(target)
        listening = self.linux.find_sshd()
        if listening is None:
            raise no_sshd_error(target.name, "Connection refused")
        if public_line(self.shows or listening.seed) != target.host_key:
            raise HostKeyRefused(target.name, "another")
        if OURS not in listening.authorized:
            raise key_refused_error(target.name, "user root")
        return Agent(LinuxWire(self, target.name, listening), 60, check_records, "linux")

    # ---- the distro

    @property
    def distro(self) -> Distro:
        distros = self.machine.distros.sessions[ACCOUNT].distros
        return distros[DISTRO.casefold()]

    @property
    def inside(self) -> LinuxAnswers:
        return self.linux.answers(self.distro)

    def shut(self) -> None:
        """Nobody is let in yet, but sshd is there."""
        self.distro.port = self.distro.listen = None
        self.distro.keys, self.distro.enabled = [], False
        self.machine.distros.write_record(
            ACCOUNT, DISTRO, {**(self.machine.distros.read_record(ACCOUNT, DISTRO) or {}), "access": None}
        )

    def state(self) -> dict[str, Any]:
        return {**super().state(), "linux": self.linux_state()}

    def linux_state(self) -> dict[str, Any]:
        """Of all that its resources can name; the way in is Windows' matter."""
        inside = self.inside.linux
        paths = (UNIT_FILE, "/etc/docker/daemon.json", "/etc/resolv.conf", "/etc/wsl.conf")
        return {
            "files": {path: inside.read_file(path) for path in paths},
            "packages": {name: (found.version, found.held) for name, found in inside.apt.installed.items()},
            "units": {name: inside.systemd.state(name) for name in (*inside.systemd.units, UNIT)},
        }

    # ---- runs

    def plan(self, vm: str | None = None, **request: Any) -> Plan:
        return make_plan(HostFacts(self.facts()), parse_request(PlanRequest("two-machines", PLAYBOOK)))


def two_machines(folder: Path, *, shut: bool = True) -> TwoMachines:
    facts, section = expand(find("win11-wsl-served"))
    here = TwoMachines(Machine(facts, section, LabClock(0)), Store(folder), facts.host)
    if shut:
        here.shut()
    return here
