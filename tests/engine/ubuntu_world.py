"""A simulated machine on which a run installs Ubuntu beside Windows: whichever system runs answers, without wires."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.engine.two_machines import OURS
from tests.engine.world import WindowsAlone, World
from winhost.connect.agent import Agent, Connector
from winhost.connect.checked_answers import parse_one_answer
from winhost.connect.host_keys import HostKeyRefused
from winhost.connect.ssh_logon import no_sshd_error
from winhost.connect.windows_with_linux import WindowsWithLinux
from winhost.connect.wire_errors import SessionDropped
from winhost.core.answers import Json
from winhost.engine.boot import LinuxFirmware
from winhost.engine.detect import read_facts
from winhost.engine.planning import make_plan
from winhost.engine.run_context import RunContext
from winhost.engine.store import Store
from winhost.engine.two_systems import RememberedWindows, TwoSystems
from winhost.lab.hostfile import expand, find
from winhost.lab.linux.linux_answers import Sshd
from winhost.lab.linux.linuxes import DualBootLinux
from winhost.lab.physics.host_state import HostDown
from winhost.lab.physics.lab_section import LabClock, LabSection
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.ssh_keys import public_line
from winhost.lab.ubuntu_installer import run_installer
from winhost.model.documents import plain
from winhost.model.facts import Facts
from winhost.model.fleet import Host, LinuxHost, Ssh, Transport
from winhost.model.plan import Plan, PlanRequest
from winhost.model.secrets import SecretRef
from winhost.model.shipped import shipped
from winhost.paths.playbook import PathRequest, parse_request, read_playbook
from winhost.resources.host import HostFacts
from winhost.resources.registry import LINUX
from winhost.resources.shape import check_records

PLAYBOOK = read_playbook(shipped("playbooks") / "dual-boot.yaml").model_dump(by_alias=True, mode="json")
IMAGE = b"as good as an image of Ubuntu Server to a simulated host"
CONSENTS = ("data", "restart", "network")
SETTINGS: Mapping[str, Any] = {
    "keys": {"by": "typed", "last_group": "env:WINHOST_LAST_GROUP"},
    "linux": "200GiB",
    "containers": {"toolkit": "1.20.0-1"},
}
_OF_THE_MOMENT = ("host_key", "ticket")  # other ones with every installation


class SshdWire:
    """Calls the lab's Linux without SSH."""

    def __init__(self, target: LinuxHost, sshd: Sshd | None, program: str) -> None:
        if sshd is None:
            raise no_sshd_error(target.name, "nobody listens")
        if public_line(sshd.seed) != target.host_key:
            raise HostKeyRefused(target.name, "it shows another key")
        assert target.user == sshd.user
        assert OURS.split()[:2] in [key.split()[:2] for key in sshd.authorized]
        self.host = target.name
        self._sshd, self._program = sshd, program

    def invoke(self, request: str, within: float) -> str:
        try:
            return self._sshd.invoke(request, program=self._program)
        except HostDown:
            raise SessionDropped(self.host, "the host went down") from None

    def close(self) -> None:
        pass


@dataclass
class UbuntuWorld(World):
    """settings: of the path."""

    consents: Sequence[str] = (*CONSENTS, "packages")
    back: Sequence[str] | None = CONSENTS
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.linux = DualBootLinux(self.machine)
        self.machine.dual_boot.installer = partial(run_installer, self.machine)
        self.memory = RememberedWindows(self.store, self.host)

    @property
    def target(self) -> Host:
        return Host(
            name=self.host,
            address="127.0.0.1",
            transport=Transport(port=5986),
            ssh=Ssh(key=SecretRef.parse("file:/none")),
        )

    @property
    def connector(self) -> Connector:
        windows = WindowsWithLinux(WindowsAlone(self), self.target, tuple(LINUX), "agent", self._enter)
        return TwoSystems(windows, self.target, self.memory, "agent", "boot", self._enter, self._told)

    def _enter(self, target: LinuxHost, program: str) -> Agent:
        return Agent(SshdWire(target, self.linux.find_sshd(), program), 60, check_records, "linux")

    def _told(self, target: LinuxHost, program: str, **request: Json) -> LinuxFirmware:
        wire = SshdWire(target, self.linux.find_sshd(), program)
        return parse_one_answer(self.host, wire.invoke(json.dumps(request), 60), LinuxFirmware, "boot")

    @property
    def context(self) -> RunContext:
        whole = super().context
        return RunContext(**{**vars(whole), "machine": self.target})

    def facts(self, named: Any = ()) -> Facts:
        self.machine.wait_until_ready()
        return read_facts(self.connector.open(), named)

    def request(self, **changed: Any) -> PathRequest:
        book = {**PLAYBOOK, "settings": {**PLAYBOOK["settings"], **self.settings, **changed}}
        return parse_request(PlanRequest("dual-boot", book, None, allow_unverified=True))

    def plan(self, vm: str | None = None, **request: Any) -> Plan:
        asked = self.request(**request)
        return make_plan(HostFacts(self.facts(asked.playbook.named)), asked)

    def state(self) -> dict[str, Any]:
        """Windows' own, whichever runs, with what it keeps; and which one that is."""
        found: dict[str, Any] = plain(super().state())
        for each in found.get("UbuntuInstaller", ()):
            each["state"] |= dict.fromkeys(_OF_THE_MOMENT)
        files = sorted(path for path in self.machine.files.list_below("C:") if "winhost" in path)
        return {
            **found,
            "files": files,
            "records": sorted(self.machine.software.registry_values),
            "linux": self.runs_linux,
        }

    @property
    def runs_linux(self) -> bool:
        self.machine.wait_until_ready()
        return self.machine.dual_boot.runs


def ubuntu_world(
    folder: Path, host: str = "win11-pro-1gpu", lab: Mapping[str, Any] | None = None, **settings: Any
) -> UbuntuWorld:
    """With the installer's image in a folder of its own."""
    facts, section = expand(find(host))
    machine = Machine(facts, LabSection.model_validate({**section.model_dump(), **(lab or {})}), LabClock(0))
    mirror = folder / "mirror"
    image = mirror / "24.04.4/ubuntu-24.04.4-live-server-amd64.iso"
    image.parent.mkdir(parents=True, exist_ok=True)
    image.write_bytes(IMAGE)
    system = {"hostname": "gpu-01", "key": OURS, "mirror": str(mirror), "sha256": sha256(IMAGE).hexdigest()}
    store = Store(folder / "state")
    whole = {**SETTINGS, "system": system, **settings}
    return UbuntuWorld(machine, store, facts.host, folder=folder, settings=whole)
