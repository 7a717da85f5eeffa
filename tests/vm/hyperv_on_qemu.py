"""A simulated Hyper-V whose one VM runs in QEMU, and what winhost does there with nothing of the guest simulated."""

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.engine.new_vm_world import CONTENT, NEW_VM, NewVmWorld
from tests.engine.world import PLAYBOOK, World
from tests.vm.qemu_vm import GATEWAY, GUEST, RESOLVER, QemuVm, Shape
from winhost.connect.agent import Agent
from winhost.connect.patience import Patience
from winhost.connect.ssh import SshConnector
from winhost.connect.windows_with_linux import WindowsWithLinux
from winhost.engine.run import RunContext
from winhost.engine.store import Store
from winhost.lab.hostfile import expand, find
from winhost.lab.physics.lab_section import LabClock
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.virtual_machine import VirtualMachine
from winhost.model.fleet import Host, Ssh, Transport
from winhost.model.plan import PlanRequest
from winhost.model.secrets import SecretRef
from winhost.paths.playbook import PathRequest, parse_request
from winhost.resources.linux.linux_scripts import session_text
from winhost.resources.registry import LINUX

WINDOWS = "192.0.2.5"
STATIC = {"address": f"{GUEST}/24", "gateway": GATEWAY, "dns": [RESOLVER]}
# A processor that is emulated, beside whatever else a machine does, takes its time.
UNHURRIED = Patience(deadline=1500, first=1, longest=5)
SLOW = {"connect_timeout": 60, "operation_timeout": 120, "call_timeout": 900}
_OF_GPUS = ("AssignableDevice", "AptPackages", "ShownGpus")


class HyperVOnQemu(Machine):
    """What its cmdlets do to a VM happens to that of QEMU."""

    qemu: QemuVm

    def _power_on(self, vm: VirtualMachine) -> None:
        super()._power_on(vm)
        self.qemu.start(Shape(vm.guid, vm.mac, vm.traits["secure_boot"] is True), vm.seeds_at_starts[-1])

    def turn_vm_off(self, guid: str) -> None:
        super().turn_vm_off(guid)
        self.qemu.turn_off()

    def ask_guest_to_stop(self, guid: str) -> float:
        super().ask_guest_to_stop(guid)
        self.qemu.shut_down(600)
        return 0.0

    def set_vm_dvd_drive(self, guid: str, found: str, path: str) -> None:
        super().set_vm_dvd_drive(guid, found, path)
        if not path and self.qemu.running:
            self.qemu.eject()


@dataclass
class QemuWorld(NewVmWorld):
    """key: by which winhost logs on; without: resources, or what they are repeated for, that its playbook leaves out.
    QEMU has no GPUs.
    """

    key: Path = field(default_factory=Path)
    without: tuple[str, ...] = _OF_GPUS

    @property
    def qemu(self) -> QemuVm:
        assert isinstance(self.machine, HyperVOnQemu)
        return self.machine.qemu

    @property
    def connector(self) -> WindowsWithLinux:
        ssh = Ssh(key=SecretRef("file", str(self.key)), address="127.0.0.1", port=self.qemu.port)
        target = Host(name=self.host, address=WINDOWS, transport=Transport(port=5986, **SLOW), ssh=ssh)
        return WindowsWithLinux(
            _Windows(self), target, tuple(LINUX), session_text(), lambda *to: SshConnector(*to).open()
        )

    def open(self) -> Agent:
        return self.connector.open()

    @property
    def context(self) -> RunContext:
        return RunContext(
            self.connector, self.store, UNHURRIED, 600, self.events.append, self.stop, self.around, self.folder
        )

    def request(self, vm: str | None = None, **more: Any) -> PathRequest:
        book = copy.deepcopy(PLAYBOOK)
        book["settings"] = {"new_vm": dict(self.settings)}
        book["resources"] = [
            each for each in book["resources"] if not {each["resource"], each.get("for_each")} & set(self.without)
        ]
        return parse_request(PlanRequest("dda", book, vm, **more))

    def known_keys(self) -> list[str]:
        """By which the host's records say that the guest is known."""
        record = self.machine.own_vms.stored_record("seed", self.made.name)
        assert record is not None
        return list(record["host_keys"])


@dataclass(frozen=True)
class _Windows:
    """The way to Windows alone."""

    here: QemuWorld

    @property
    def host(self) -> str:
        return self.here.host

    def open(self) -> Agent:
        return World.open(self.here)


def qemu_world(folder: Path, qemu: QemuVm, key: Path) -> QemuWorld:
    """With an image beside the plan that the simulated host takes for the one on QEMU's disk."""
    facts, section = expand(find("server2025-role-installed"))
    machine = HyperVOnQemu(facts, section, LabClock(0))
    machine.qemu = qemu
    (folder / "noble.vhdx").write_bytes(CONTENT)
    public = key.with_suffix(".pub").read_text().strip()
    settings = {**NEW_VM, **STATIC, "guest": {"key": public}}
    return QemuWorld(machine, Store(folder / "state"), facts.host, folder=folder, settings=settings, key=key)
