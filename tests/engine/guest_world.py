"""A simulated Hyper-V, and the guest that winhost makes there, sets up and gives the GPUs, without wires between."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.engine.new_vm_world import CONTENT, NEW_VM, NewVmWorld
from tests.engine.world import WindowsAlone
from tests.images.made_qcow2 import made
from winhost.connect.agent import Agent
from winhost.connect.host_keys import HostKeyRefused
from winhost.connect.ssh_logon import key_refused_error, no_sshd_error
from winhost.connect.windows_with_linux import WindowsWithLinux
from winhost.connect.wire_errors import SessionDropped
from winhost.engine.store import Store
from winhost.images.guest_disk import SourceImage, guest_disk
from winhost.lab.hostfile import expand, find
from winhost.lab.linux.linux_answers import Sshd
from winhost.lab.linux.linuxes import GuestLinux, HostGuests
from winhost.lab.physics.host_state import HostDown
from winhost.lab.physics.lab_section import LabClock, LabSection
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.ssh_keys import public_line
from winhost.model.fleet import Host, LinuxHost, Ssh, Transport
from winhost.model.secrets import SecretRef
from winhost.model.units import MiB
from winhost.resources.registry import LINUX
from winhost.resources.shape import check_records

OURS = f"{public_line(b'a controller that there is none of'[:32])} controller"
WINDOWS = "192.0.2.5"
STATIC = {"address": "192.0.2.10/24", "gateway": "192.0.2.1", "dns": ["192.0.2.53"]}


class GuestWire:
    """Calls the guest without SSH."""

    def __init__(self, host: str, listening: Sshd) -> None:
        self.host = host
        self._listening = listening

    def invoke(self, request: str, within: float) -> str:
        try:
            return self._listening.invoke(request)
        except HostDown:
            raise SessionDropped(self.host, "the guest is gone") from None

    def close(self) -> None:
        pass


@dataclass
class GuestWorld(NewVmWorld):
    """shows: a host key of somebody else, who answers at its address; targets: what was opened."""

    shows: bytes | None = None
    targets: list[LinuxHost] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.guests = self.linux = HostGuests(self.machine)

    @property
    def connector(self) -> WindowsWithLinux:
        target = Host(
            name=self.host, address=WINDOWS, transport=Transport(port=5986), ssh=Ssh(key=SecretRef("env", "NOT_READ"))
        )
        return WindowsWithLinux(WindowsAlone(self), target, tuple(LINUX), "", self._enter)

    def open(self) -> Agent:
        return self.connector.open()

    def _enter(self, target: LinuxHost, program: str) -> Agent:
        self.targets.append(target)
        listening = self.guests.find_sshd()
        if listening is None or self._reached(target) not in [address for address, _ in self.machine.neighbours()]:
            raise no_sshd_error(target.name, "Connection refused")
        if public_line(self.shows or listening.seed) not in str(target.host_key).split("\n"):
            raise HostKeyRefused(target.name, "another")
        if target.user != listening.user or OURS not in listening.authorized:
            raise key_refused_error(target.name, f"user {target.user}")
        return Agent(GuestWire(target.name, listening), 60, check_records, "linux")

    def _reached(self, target: LinuxHost) -> str:
        """The address that it comes to, through a port of the host if need be."""
        forward = self.machine.network.proxies.get(str(target.port)) if target.address == WINDOWS else None
        return forward.partition("/")[0] if forward else target.address

    @property
    def guest(self) -> GuestLinux:
        found = self.guests.guest(self.made)
        assert found is not None
        return found


def guest_world(
    folder: Path,
    lab: Mapping[str, Any] | None = None,
    network: Mapping[str, Any] | None = None,
    *,
    host: str = "server2025-role-installed",
    **guest: Any,
) -> GuestWorld:
    """With the image beside the plan. network, guest: more of its settings."""
    facts, section = expand(find(host))
    machine = Machine(facts, LabSection.model_validate({**section.model_dump(), **(lab or {})}), LabClock(0))
    beside = folder / "beside"
    beside.mkdir(parents=True, exist_ok=True)
    (beside / "noble.vhdx").write_bytes(CONTENT)
    settings = {**NEW_VM, **(network or {}), "guest": {"key": OURS, **guest}}
    return GuestWorld(machine, Store(folder / "state"), facts.host, folder=beside, settings=settings)


def with_image(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[GuestWorld, Path]:
    """A host whose new VM is made of an image on this computer, and that image."""
    monkeypatch.setenv("WINHOST_CACHE", str(folder / "cache"))
    image = folder / "noble.qcow2"
    image.write_bytes(made(b"a disk".ljust(MiB, b"\0"), cluster_bits=16).data)
    source = SourceImage(str(image), sha256(image.read_bytes()).hexdigest(), image.stat().st_size)
    disk = guest_disk(source, lambda *_: None, cache=folder / "elsewhere")
    here = guest_world(folder)
    pinned = {"place": source.source, "sha256": source.sha256, "bytes": source.bytes}
    pinned |= {"disk_sha256": disk.sha256, "disk_bytes": disk.bytes}
    settings = {name: value for name, value in here.settings.items() if name != "vhdx"}
    here.settings = {**settings, "image": {"name": "./noble.qcow2", "pinned": pinned}}
    return here, image
