"""A simulated Windows and the Linux that the shipped playbook of WSL 2 makes of it, without wires between."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.engine.two_machines import OURS, TwoMachines
from tests.engine.world import DirectWire
from winhost.connect.agent import Agent
from winhost.connect.windows_with_linux import WindowsWithLinux
from winhost.connect.wire_errors import SessionDropped, Unreachable
from winhost.core.checks import Check
from winhost.engine.planning import check_plan, make_plan
from winhost.engine.store import Store
from winhost.engine.verify import verify_plan
from winhost.lab.hostfile import expand, find
from winhost.lab.physics.lab_section import LabClock
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.wsl_exe import Distro
from winhost.model.fleet import Host, Transport
from winhost.model.plan import Plan, PlanRequest
from winhost.model.shipped import shipped
from winhost.paths.playbook import PathRequest, parse_request, read_playbook
from winhost.resources.host import HostFacts
from winhost.resources.registry import LINUX
from winhost.resources.shape import check_records

ACCOUNT = DISTRO = "winhost"
OWNED = {"account": ACCOUNT, "distro": DISTRO}
BOOK = read_playbook(shipped("playbooks") / "wsl2.yaml").model_dump(by_alias=True, mode="json")
CONSENTS = ("restart", "network", "vm-stop", "headless")
DATA = "C:\\ProgramData\\winhost"
LEFT = f"{DATA}\\exports\\"  # what a rollback leaves: the distro as it was exported


def playbook(**settings: Any) -> dict[str, Any]:
    """The shipped one, with a way in and these settings."""
    book = copy.deepcopy(BOOK)
    book["settings"] |= {"access": {"key": OURS}, **settings}
    return book


class Wire(DirectWire):
    """Is cut where the network that it goes over is."""

    def __init__(self, here: "Wsl2World") -> None:
        if not here.machine.network.is_reachable:
            raise Unreachable(here.host, "no route")
        super().__init__(here.host, here.answers)
        self._network = here.machine.network
        self._wire = self._network.epoch

    def invoke(self, request: str, within: float) -> str:
        answer = super().invoke(request, within)
        if (self._network.epoch, self._network.is_reachable) != (self._wire, True):
            raise SessionDropped(self.host, "the wire was cut")
        return answer


@dataclass(frozen=True)
class _Windows:
    """The way to Windows alone."""

    here: "Wsl2World"

    @property
    def host(self) -> str:
        return self.here.host

    def open(self) -> Agent:
        return Agent(Wire(self.here), 60, check_records)


@dataclass
class Wsl2World(TwoMachines):
    """book: what is asked for; unverified: though not all of it is proven."""

    consents: Sequence[str] = CONSENTS
    book: Mapping[str, Any] = field(default_factory=playbook)
    unverified: bool = False

    @property
    def connector(self) -> WindowsWithLinux:
        target = Host(name=self.host, address="192.0.2.5", transport=Transport(port=5986), ssh=self.ssh)
        return WindowsWithLinux(_Windows(self), target, tuple(LINUX), "", self._enter)

    def plan(self, vm: str | None = None, **request: Any) -> Plan:
        requested = self.request
        return make_plan(HostFacts(self.facts(requested.playbook.named)), requested)

    @property
    def request(self) -> PathRequest:
        return parse_request(PlanRequest("wsl2", self.book, allow_unverified=self.unverified))

    def differing(self, plan: Plan) -> list[Check]:
        """What `verify` would tell."""
        return [check for check in verify_plan(check_plan(plan), HostFacts(self.facts())) if not check.holds]

    @property
    def distro(self) -> Distro:
        return self.machine.distros.sessions[ACCOUNT].distros[DISTRO]

    def state(self) -> dict[str, Any]:
        """Also what no resource tells: files of winhost, and VMs without a distro. Linux is as its distro is."""
        self.machine.wait_until_ready()
        files = sorted(path for path in self.machine.files.list_below(DATA) if not path.startswith(LEFT))
        vms = [account for account, session in self.machine.distros.sessions.items() if session.vm]
        linux = [self.linux_state()] if self.machine.distros.session(ACCOUNT).distros else []
        return {**self.machine.comparable_state(), "files": files, "vms": vms, "linux": linux}


def wsl2_world(
    folder: Path, host: str | Path = "win11-pro-1gpu", *, unverified: bool = False, **settings: Any
) -> Wsl2World:
    facts, section = expand(host if isinstance(host, Path) else find(host))
    machine = Machine(facts, section, LabClock(0))
    return Wsl2World(machine, Store(folder), facts.host, book=playbook(**settings), unverified=unverified)
